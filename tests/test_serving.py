"""The example server answers with what the pipeline draws."""

import io
import json
import threading
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch

diffusers = pytest.importorskip("diffusers", reason="pip install 'ld3[diffusers]'")
pytest.importorskip("transformers", reason="pip install 'ld3[diffusers]'")
image = pytest.importorskip("PIL.Image")

from examples import serve  # noqa: E402

import pipelines as tiny  # noqa: E402
from ld3.errors import PlanError  # noqa: E402
from plans import make_plan  # noqa: E402


@pytest.fixture(scope="module")
def drawing() -> serve.Drawing:
    plans = [make_plan(steps=steps, shape=(4, 8, 8)) for steps in (4, 3)]
    return serve.Drawing(tiny.sd(), plans)


@pytest.fixture(scope="module")
def address(drawing: serve.Drawing) -> Iterator[str]:
    server = serve.server(drawing, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/generate"
    server.shutdown()
    server.server_close()
    thread.join()


def post(address: str, wish: Any) -> bytes:
    with urlopen(Request(address, data=json.dumps(wish).encode())) as answer:
        assert answer.headers["Content-Type"] == "image/png"
        return bytes(answer.read())


def test_the_server_draws_what_the_pipeline_draws(drawing: serve.Drawing, address: str) -> None:
    for steps in (None, 3):
        wish = {"prompt": "a dog", "seed": 3, "guidance": 2.0}
        wish |= {} if steps is None else {"steps": steps}
        found = np.asarray(image.open(io.BytesIO(post(address, wish))))
        direct = drawing.pipe("a dog", num_inference_steps=steps or 4, guidance_scale=2.0,
                              generator=torch.Generator().manual_seed(3)).images[0]  # fmt: skip
        assert np.array_equal(found, np.asarray(direct))
    assert post(address, {"prompt": "a dog", "seed": 4}) != post(address, {"prompt": "a dog"})


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"prompt": "a dog", "seed": "x"}, "invalid literal"),
        ({"prompt": "a dog", "steps": 9}, "expected one of 3, 4"),
        ({"seed": 1}, "with a prompt"),
        ([], ""),
    ],
)
def test_wrong_requests_get_one_line(address: str, wish: Any, said: str) -> None:
    with pytest.raises(HTTPError) as error:
        post(address, wish)
    answer = error.value.read().decode()
    assert error.value.code == 400 and said in answer and len(answer.splitlines()) == 1


def test_a_plan_of_another_model_is_refused() -> None:
    with pytest.raises(PlanError, match="learned for another model"):
        serve.Drawing(tiny.sd(), [make_plan("flow", prediction="flow")])
