"""LD3Scheduler in pipelines that start from an image or a video and slice `timesteps`.

Real classes of diffusers with tiny random networks. None of them says where it begins: the first
step is found by its timestep. The sample must be that of the end of the plan's table.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

diffusers = pytest.importorskip("diffusers", reason="pip install 'ld3[diffusers]'")
pytest.importorskip("transformers", reason="pip install 'ld3[diffusers]'")

import ld3  # noqa: E402
import pipelines as tiny  # noqa: E402
from ld3.diffusers import LD3Scheduler  # noqa: E402
from ld3.errors import PlanError  # noqa: E402
from ld3.plan import Plan  # noqa: E402
from ld3.predictions import Prediction, to_x0  # noqa: E402
from ld3.schedules import Discrete, Schedule, in_network_units  # noqa: E402
from ld3.zoo.pipelines.noise import read_noise  # noqa: E402
from plans import make_plan  # noqa: E402
from test_diffusers_scheduler import Asked  # noqa: E402

STEPS, STRENGTH = 6, 0.5
SIDE = 16
BETAS = {"beta_schedule": "linear", "beta_start": 0.00085, "beta_end": 0.012}
COGVIDEO = {  # that of CogVideoX-2b; the larger ones have snr_shift_scale 1
    "prediction_type": "v_prediction", "rescale_betas_zero_snr": True, "snr_shift_scale": 3.0,
}  # fmt: skip


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def animatediff() -> tuple[Any, dict[str, Any]]:
    encoder, tokenizer = tiny.clip(8)
    adapter = diffusers.MotionAdapter(
        block_out_channels=(8, 16),
        motion_layers_per_block=1,
        motion_norm_num_groups=2,
        motion_num_attention_heads=2,
        motion_max_seq_length=8,
    )
    pipe = diffusers.AnimateDiffVideoToVideoPipeline(
        vae=tiny.kl_vae(4),
        text_encoder=encoder,
        tokenizer=tokenizer,
        unet=tiny.condition_unet(cross_attention_dim=8),
        motion_adapter=tiny.lively(adapter),
        scheduler=tiny.make_scheduler("DDIMScheduler", **BETAS, clip_sample=False),
    )
    video = list(random(3, 3, SIDE, SIDE))
    return pipe, {"prompt": "a dog", "video": [video], "strength": STRENGTH}


def cogvideo_parts(channels: int, kind: str, **more: Any) -> dict[str, Any]:
    encoder, tokenizer = tiny.t5(16)
    transformer = getattr(diffusers, kind)(
        num_attention_heads=1,
        attention_head_dim=16,
        in_channels=channels,
        out_channels=4,
        time_embed_dim=4,
        text_embed_dim=16,
        num_layers=1,
        sample_width=2,
        sample_height=2,
        sample_frames=5,
        temporal_compression_ratio=4,
        max_text_seq_length=tiny.LENGTH,
        use_rotary_positional_embeddings=True,
        **more,
    )
    vae = diffusers.AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(4, 4, 4, 4),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
    )
    return {
        "tokenizer": tokenizer, "text_encoder": encoder, "vae": vae,
        "transformer": tiny.lively(transformer),
        "scheduler": diffusers.CogVideoXDDIMScheduler(**COGVIDEO),
    }  # fmt: skip


def cogvideo(kind: str) -> tuple[Any, dict[str, Any]]:
    from_image = kind == "CogVideoXImageToVideoPipeline"
    parts = cogvideo_parts(8 if from_image else 4, "CogVideoXTransformer3DModel")
    given: dict[str, Any] = {"image": random(1, 3, SIDE, SIDE), "num_frames": 5}
    if not from_image:
        given = {"video": [random(5, 3, SIDE, SIDE)], "strength": STRENGTH}
    words = {"prompt": "a dog", "height": SIDE, "width": SIDE, "max_sequence_length": tiny.LENGTH}
    return getattr(diffusers, kind)(**parts), words | given


def consisid() -> tuple[Any, dict[str, Any]]:
    # at its name in diffusers only with OpenCV, which finds faces before the pipeline
    from diffusers.pipelines.consisid.pipeline_consisid import ConsisIDPipeline

    parts = cogvideo_parts(
        8, "ConsisIDTransformer3DModel", is_train_face=True, is_kps=False, cross_attn_interval=1,
        cross_attn_dim_head=4, cross_attn_num_heads=1, LFE_id_dim=4, LFE_vit_dim=4, LFE_depth=5,
        LFE_dim_head=4, LFE_num_heads=1, LFE_num_id_token=1, LFE_num_querie=1, LFE_output_dim=10,
        LFE_ff_mult=1, LFE_num_scale=1,  # 10 of 16: two thirds of the width
    )  # fmt: skip
    words = {
        "prompt": "a dog", "image": random(1, 3, SIDE, SIDE), "height": SIDE, "width": SIDE,
        "num_frames": 5, "max_sequence_length": tiny.LENGTH, "id_cond": random(1, 4),
        "id_vit_hidden": [random(1, 2, 4)],
    }  # fmt: skip
    return ConsisIDPipeline(**parts), words


def movq() -> Any:
    return diffusers.VQModel(
        block_out_channels=[32, 32],  # its norms have 32 groups
        down_block_types=["DownEncoderBlock2D", "AttnDownEncoderBlock2D"],
        up_block_types=["AttnUpDecoderBlock2D", "UpDecoderBlock2D"],
        latent_channels=4,
        norm_num_groups=4,
        norm_type="spatial",
        num_vq_embeddings=6,
        vq_embed_dim=4,
    )


def kandinsky_unet(about: str) -> Any:
    """Kandinsky 2: mean and variance; conditions on an image, or on text and an image."""
    return tiny.lively(
        diffusers.UNet2DConditionModel(
            in_channels=4,
            out_channels=8,
            down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
            up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
            mid_block_type="UNetMidBlock2DSimpleCrossAttn",
            block_out_channels=(8, 16),
            layers_per_block=1,
            norm_num_groups=4,
            addition_embed_type=about,
            encoder_hid_dim=8,
            encoder_hid_dim_type=f"{about}_proj",
            cross_attention_dim=8,
            attention_head_dim=4,
            resnet_time_scale_shift="scale_shift",
        )
    )


def kandinsky21() -> tuple[Any, dict[str, Any]]:
    from diffusers.pipelines.kandinsky.text_encoder import MCLIPConfig, MultilingualCLIP

    _, tokenizer = tiny.clip(8)
    config = MCLIPConfig(
        transformerDimSize=8, imageDimSize=8, hidden_size=8, intermediate_size=8,
        num_attention_heads=2, num_hidden_layers=1, vocab_size=len(tokenizer), pad_token_id=1,
    )  # fmt: skip
    pipe = diffusers.KandinskyImg2ImgPipeline(
        text_encoder=MultilingualCLIP(config),
        tokenizer=tokenizer,
        movq=movq(),
        unet=kandinsky_unet("text_image"),
        scheduler=tiny.make_scheduler("DDIMScheduler", **BETAS, clip_sample=False),
    )
    return pipe, {**kandinsky_words(), "prompt": "a dog"}


def kandinsky_words() -> dict[str, Any]:
    return {
        "image": random(1, 3, 64, 64), "image_embeds": random(1, 8),
        "negative_image_embeds": random(1, 8, seed=1), "height": 64, "width": 64,
        "strength": STRENGTH,
    }  # fmt: skip


def kandinsky22() -> tuple[Any, dict[str, Any]]:
    pipe = diffusers.KandinskyV22Img2ImgPipeline(
        movq=movq(),
        unet=kandinsky_unet("image"),
        scheduler=tiny.make_scheduler("DDPMScheduler", **BETAS),
    )
    return pipe, kandinsky_words()


def kandinsky3() -> tuple[Any, dict[str, Any]]:
    encoder, tokenizer = tiny.t5(16)
    unet = diffusers.Kandinsky3UNet(
        in_channels=4,
        time_embedding_dim=4,
        groups=2,
        attention_head_dim=4,
        layers_per_block=3,
        block_out_channels=(8, 16),
        cross_attention_dim=4,
        encoder_hid_dim=16,
    )
    pipe = diffusers.Kandinsky3Img2ImgPipeline(
        tokenizer=tokenizer,
        text_encoder=encoder,
        movq=movq(),
        unet=tiny.lively(unet),
        scheduler=tiny.make_scheduler("DDPMScheduler", beta_schedule="squaredcos_cap_v2"),
    )
    return pipe, {"prompt": "a dog", "image": random(1, 3, 64, 64), "strength": STRENGTH}


PIPELINES: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "AnimateDiffVideoToVideoPipeline": animatediff,
    "CogVideoXImageToVideoPipeline": lambda: cogvideo("CogVideoXImageToVideoPipeline"),
    "CogVideoXVideoToVideoPipeline": lambda: cogvideo("CogVideoXVideoToVideoPipeline"),
    "ConsisIDPipeline": consisid,
    "KandinskyV22Img2ImgPipeline": kandinsky22,
    "Kandinsky3Img2ImgPipeline": kandinsky3,
}


class Pointed(Asked):
    """Also gives the state to pipelines that do not scale the network's input."""

    def add_noise(self, sample: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        return self.x if self.x.shape == sample.shape else sample


class Run:
    """A pipeline, its call, and its network as our solvers ask it."""

    schedule: Schedule
    prediction: Prediction

    def __init__(self, pipe: Any, words: dict[str, Any]) -> None:
        self.pipe, self.words = tiny.quiet(pipe), words
        if not hasattr(self, "schedule"):
            self.schedule, self.prediction = read_noise(pipe.scheduler)
        self.strength = words.get("strength", words.get("denoise_strength", 1.0))
        self.states: list[Tensor] = []
        self.told: list[Tensor] = []

    def call(self, scheduler: Any, steps: int, **more: Any) -> None:
        self.pipe.scheduler = scheduler
        seed = torch.Generator().manual_seed(0)
        self.pipe(**(self.words | more), guidance_scale=3.0, num_inference_steps=steps,
                  generator=seed)  # fmt: skip

    def draw(self, plan: Plan) -> LD3Scheduler:
        """Keeps the timesteps, the first state and every state after a step."""
        scheduler = LD3Scheduler.from_plan(plan, like=self.pipe)
        step = scheduler.step

        def watched(output: Tensor, t: Any, sample: Tensor, **words: Any) -> Any:
            found = step(output, t, sample, **words)
            self.states = self.states or [sample]
            self.states.append(found[0] if isinstance(found, tuple) else found.prev_sample)
            self.told.append(t)
            return found

        scheduler.step = watched
        self.call(scheduler, plan.nfe)
        return scheduler

    def output(self, x: Tensor, t: Tensor) -> Tensor:
        """What the network answers, guidance included."""
        listener = Pointed()
        listener.x, listener.t = x.float(), in_network_units(self.schedule, t).float()
        whole = {word: 1.0 for word in ("strength", "denoise_strength") if word in self.words}
        self.call(listener, 1, **whole)
        return listener.output[:, : x.shape[1]].double()  # a learned variance is left out

    def denoise(self, x: Tensor, t: Tensor) -> Tensor:
        alpha, sigma = self.schedule.log_alpha(t).exp(), self.schedule.log_sigma(t).exp()
        return to_x0(self.prediction, self.output(x, t), x, alpha, sigma)


def check(run: Run) -> None:
    """The pipeline's states against the end of a plan's table."""
    plan = make_plan(run.schedule, "dpmpp", 2, prediction=run.prediction, steps=STEPS,
                     corrections=False)  # fmt: skip
    begin = STEPS - int(STEPS * run.strength)
    scheduler = run.draw(plan)
    assert torch.equal(torch.stack(run.told), scheduler.timesteps[begin:])
    with torch.no_grad():
        tail = plan.table_for(run.schedule, "x0").tail(begin)
        wanted = tail.run(run.denoise, run.states[0].double())
    assert (run.states[-1] - wanted).abs().max() < 1e-4 * wanted.abs().max().clamp(min=1)


@pytest.mark.parametrize("name", PIPELINES)
def test_the_sample_is_that_of_the_plans_end(name: str) -> None:
    torch.manual_seed(0)
    check(Run(*PIPELINES[name]()))


def test_kandinsky_21_wants_whole_timesteps() -> None:
    """It adds the noise of other betas itself, by an index; with the scheduler's noise it runs."""
    torch.manual_seed(0)
    run = Run(*kandinsky21())
    with pytest.raises(IndexError):
        check(run)
    run = Run(*kandinsky21())

    def noised(sample: Tensor, noise: Tensor, timesteps: Tensor) -> Any:
        scheduler = run.pipe.scheduler
        return scheduler.add_noise(sample, noise, scheduler.timesteps[STEPS // 2 :][:1])

    run.pipe.add_noise = noised
    check(run)


@pytest.mark.parametrize("strength", [1.0, 0.5, 0.34])
def test_ltx_from_latents(strength: float) -> None:
    """`denoise_strength` cuts `sigmas` and `timesteps`; each token has the time of its step."""
    base = tiny.TINY["ltx"]()
    pipe = diffusers.LTXConditionPipeline(**base.components)
    side = 64 // pipe.vae_spatial_compression_ratio
    words = {**tiny.CALLS["ltx"], "prompt": ["a dog"], "height": 64, "width": 64,
             "denoise_strength": strength, "latents": random(1, 8, 2, side, side),
             "output_type": "latent"}  # fmt: skip

    class Tokens(Run):
        schedule, prediction = ld3.Flow(), "flow"

        def output(self, x: Tensor, t: Tensor) -> Tensor:
            """The state goes in before the network; velocities come with their sign changed."""

            def replace(module: Any, args: Any, given: dict[str, Any]) -> Any:
                return args, given | {"hidden_states": torch.cat([x.float()] * 2)}

            hook = pipe.transformer.register_forward_pre_hook(replace, with_kwargs=True)
            try:
                return -super().output(x, t)
            finally:
                hook.remove()

    check(Tokens(pipe, words))


# ---- the noise of CogVideoX: betas, a shift of the signal-to-noise ratio, zero at its end


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("kind", ["CogVideoXDDIMScheduler", "CogVideoXDPMScheduler"])
def test_the_noise_of_cogvideox_is_read(kind: str, zero: bool, scale: float) -> None:
    words = COGVIDEO | {"snr_shift_scale": scale, "rescale_betas_zero_snr": zero}
    stock = tiny.make_scheduler(kind, **words)
    schedule, prediction = read_noise(stock)
    assert isinstance(schedule, Discrete) and prediction == "v"
    assert len(schedule.log_alphas) == 1000 - zero and schedule.steps == 1000
    ours = torch.tensor(schedule.log_alphas).mul(2).exp()
    assert torch.allclose(stock.alphas_cumprod[: len(ours)].float(), ours, rtol=1e-3, atol=1e-7)


def test_a_plan_for_another_shift_of_cogvideox_is_refused() -> None:
    """Both ways: the betas in the two configs are the same."""
    for own, other in ((3.0, 1.0), (1.0, 3.0)):
        right, wrong = (
            tiny.make_scheduler("CogVideoXDDIMScheduler", **COGVIDEO | {"snr_shift_scale": scale})
            for scale in (own, other)
        )
        plan = make_plan(read_noise(right)[0], prediction="v")
        LD3Scheduler.from_plan(plan, like=right)
        with pytest.raises(PlanError, match=r"betas 0\.00085 to 0\.012.*another model"):
            LD3Scheduler.from_plan(plan, like=wrong)
        back = LD3Scheduler.from_config(right.config, plans=[plan])
        again = type(right).from_config(back.config)
        assert torch.equal(again.alphas_cumprod, right.alphas_cumprod)
