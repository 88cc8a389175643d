"""A small image server around a diffusers pipeline, with a learned plan: POST a prompt, get a PNG.

    python examples/serve.py owner/model --plan plan.json [--port 8000]
    curl -s localhost:8000/generate -d '{"prompt": "a red fox in snow", "seed": 1}' -o fox.png

`LD3Scheduler` runs the plan as it was learned: its solver, network times and coefficients. A
request may ask for another learned number of steps. A scheduler remembers where it is, so requests
take turns. The server listens on this machine alone.
"""

import argparse
import io
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Lock
from typing import Any

import torch

from ld3 import Ld3Error, Plan
from ld3.diffusers import LD3Scheduler

LONGEST = 100_000  # bytes of a request


class Drawing:
    """A pipeline with a plan."""

    def __init__(self, pipe: Any, plans: list[Plan]) -> None:
        pipe.scheduler = LD3Scheduler.from_plan(*plans, like=pipe)  # refuses another model's plan
        self.pipe, self.plans, self.turn = pipe, plans, Lock()

    def png(self, wish: Any) -> bytes:
        """The image of a request: prompt, seed, steps, guidance."""
        if not isinstance(wish, dict) or "prompt" not in wish:
            raise Ld3Error("expected a JSON object with a prompt")
        learned = sorted(count for plan in self.plans for count in plan.counts)
        steps = int(wish.get("steps", self.plans[0].nfe))
        if steps not in learned:
            raise Ld3Error(f"steps: got {steps}, expected one of {', '.join(map(str, learned))}")
        generator = torch.Generator().manual_seed(int(wish.get("seed", 0)))
        guidance = {"guidance_scale": float(wish["guidance"])} if "guidance" in wish else {}
        with self.turn:
            image = self.pipe(
                str(wish["prompt"]), num_inference_steps=steps, generator=generator, **guidance
            ).images[0]
        file = io.BytesIO()
        image.save(file, "PNG")
        return file.getvalue()


def server(drawing: Drawing, port: int = 8000) -> HTTPServer:
    """A server on this machine; `serve_forever()` starts it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            try:
                if self.path != "/generate" or not 0 < size <= LONGEST:
                    raise Ld3Error("expected POST /generate with a JSON object")
                kind, body = "image/png", drawing.png(json.loads(self.rfile.read(size)))
                code = 200
            except (Ld3Error, TypeError, ValueError) as error:
                code, kind, body = 400, "text/plain", f"{error}\n".encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return HTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder or hub id of a pipeline")
    parser.add_argument("--plan", action="append", required=True, help="a plan.json; repeatable")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    from diffusers import DiffusionPipeline

    pipe = DiffusionPipeline.from_pretrained(args.model).to(args.device)
    drawing = Drawing(pipe, [Plan.load(path) for path in args.plan])
    print(f"http://127.0.0.1:{args.port}/generate", flush=True)
    server(drawing, args.port).serve_forever()


if __name__ == "__main__":
    main()
