"""Tiny diffusers pipelines of every family, from their real classes, with random weights.

Nothing is downloaded: tokenizers are made from a vocabulary of letters. All are float32 on the CPU,
a few ten thousand weights each, and the same every time.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

WORDS = "abcdefghijklmnopqrstuvwxyz0123456789.,'"
LENGTH = 16  # tokens a prompt


def ddpm(scheduler: str = "DDPMScheduler", **config: Any) -> Any:
    """Unconditional, pixels: 3x8x8."""
    import diffusers

    torch.manual_seed(0)
    unet = plain_unet()
    return quiet(diffusers.DDPMPipeline(lively(unet), make_scheduler(scheduler, **config)))


def ldm() -> Any:
    """Unconditional, latents 3x8x8 with a VQ decoder to 3x16x16."""
    import diffusers

    torch.manual_seed(0)
    unet = plain_unet()
    vqvae = diffusers.VQModel(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        latent_channels=3,
        num_vq_embeddings=64,
        norm_num_groups=4,
        layers_per_block=1,
    )
    scheduler = make_scheduler("DDIMScheduler", **LDM, clip_sample=False)
    return quiet(diffusers.LDMPipeline(vqvae, lively(unet), scheduler))


def dit() -> Any:
    """Class-conditional, latents 4x8x8, learned variance."""
    import diffusers

    torch.manual_seed(0)
    transformer = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_zero",
        activation_fn="gelu-approximate",
    )
    scheduler = make_scheduler("DDIMScheduler", clip_sample=False)
    return quiet(diffusers.DiTPipeline(lively(transformer), kl_vae(4), scheduler))


def sd(scheduler: str = "PNDMScheduler", **config: Any) -> Any:
    """Stable Diffusion: latents 4x8x8. SD 2 is `sd(prediction_type="v_prediction")`; a rectified
    flow on the same backbone is `sd("DPMSolverMultistepScheduler", **FLOW)`."""
    import diffusers

    torch.manual_seed(0)
    config = SD | {"steps_offset": 1} | config
    if scheduler == "PNDMScheduler":
        config = {"skip_prk_steps": True} | config
    encoder, tokenizer = clip(16)
    return quiet(
        diffusers.StableDiffusionPipeline(
            vae=kl_vae(4),
            text_encoder=encoder,
            tokenizer=tokenizer,
            unet=condition_unet(cross_attention_dim=16),
            scheduler=make_scheduler(scheduler, **config),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    )


def save_instaflow(folder: Path) -> None:
    """A 2-rectified flow as it is published: the parts of Stable Diffusion, and an index with a
    class that diffusers does not have."""
    sd().save_pretrained(folder)
    index = json.loads((folder / "model_index.json").read_text())
    index["_class_name"] = "RectifiedFlowPipeline"
    (folder / "model_index.json").write_text(json.dumps(index))


def sdxl(scheduler: str = "DPMSolverMultistepScheduler", **config: Any) -> Any:
    """Stable Diffusion XL: two text encoders, sizes and pooled text as added conditions."""
    import diffusers

    torch.manual_seed(0)
    first, tokenizer = clip(16)
    second, tokenizer_2 = clip(16, projected=True)
    unet = condition_unet(
        cross_attention_dim=32,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + 16,
    )
    return quiet(
        diffusers.StableDiffusionXLPipeline(
            vae=kl_vae(4),
            text_encoder=first,
            text_encoder_2=second,
            tokenizer=tokenizer,
            tokenizer_2=tokenizer_2,
            unet=unet,
            scheduler=make_scheduler(scheduler, **(SD | config)),
            add_watermarker=False,
        )
    )


def sd3(medium: bool = False, **config: Any) -> Any:
    """Stable Diffusion 3: a flow with three text encoders, latents 4x8x8. `medium`: as 3.5, with
    16 channels, normed queries and keys and a second attention in its first block."""
    import diffusers

    torch.manual_seed(0)
    first, tokenizer = clip(16, projected=True)
    second, tokenizer_2 = clip(16, projected=True)
    third, tokenizer_3 = t5(32)
    channels = 16 if medium else 4
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=channels,
        out_channels=channels,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=32,
        pos_embed_max_size=16,
        dual_attention_layers=(0,) if medium else (),
        qk_norm="rms_norm" if medium else None,
    )
    return quiet(
        diffusers.StableDiffusion3Pipeline(
            transformer=lively(transformer),
            scheduler=make_scheduler(
                "FlowMatchEulerDiscreteScheduler", **({"shift": 3.0} | config)
            ),
            vae=kl_vae(channels, shift_factor=0.1),
            text_encoder=first,
            tokenizer=tokenizer,
            text_encoder_2=second,
            tokenizer_2=tokenizer_2,
            text_encoder_3=third,
            tokenizer_3=tokenizer_3,
        )
    )


def flux(guidance_embeds: bool = True) -> Any:
    """Flux: packed latents 16x16 (of 4x8x8), guidance as a condition, dynamic shift."""
    import diffusers

    torch.manual_seed(0)
    first, tokenizer = clip(16)
    second, tokenizer_2 = t5(16)
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        guidance_embeds=guidance_embeds,
        axes_dims_rope=(4, 4, 8),
    )
    pipe = diffusers.FluxPipeline(
        scheduler=make_scheduler("FlowMatchEulerDiscreteScheduler", use_dynamic_shifting=True),
        vae=kl_vae(4, shift_factor=0.1),
        text_encoder=first,
        tokenizer=tokenizer,
        text_encoder_2=second,
        tokenizer_2=tokenizer_2,
        transformer=lively(transformer),
    )
    return quiet(pipe)


def sana() -> Any:
    """Sana: a flow behind a DPM-Solver scheduler, Gemma text, deep-compression decoder."""
    import diffusers

    torch.manual_seed(0)
    encoder, tokenizer = gemma()
    transformer = diffusers.SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=16,
        caption_channels=16,
        sample_size=16,
        patch_size=1,
    )
    vae = diffusers.AutoencoderDC(
        in_channels=3,
        latent_channels=4,
        attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
        scaling_factor=0.41407,
    )
    return quiet(
        diffusers.SanaPipeline(
            tokenizer=tokenizer,
            text_encoder=encoder,
            vae=vae,
            transformer=lively(transformer),
            scheduler=make_scheduler("DPMSolverMultistepScheduler", **FLOW),
        )
    )


def wan(experts: bool = False) -> Any:
    """Wan: video latents 16x2x8x8 (4 in time and 8 in space each way). `experts`: two networks."""
    import diffusers
    from transformers import UMT5Config, UMT5EncoderModel

    torch.manual_seed(0)
    tokenizer = t5_tokenizer()
    shape = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    encoder = UMT5EncoderModel(UMT5Config(vocab_size=len(tokenizer), **shape))

    def network() -> Any:
        return lively(
            diffusers.WanTransformer3DModel(
                patch_size=(1, 2, 2),
                num_attention_heads=2,
                attention_head_dim=12,
                in_channels=16,
                out_channels=16,
                text_dim=16,
                freq_dim=16,
                ffn_dim=16,
                num_layers=1,
                cross_attn_norm=True,
                qk_norm="rms_norm_across_heads",
                rope_max_seq_len=32,
            )
        )

    vae = diffusers.AutoencoderKLWan(
        base_dim=4,
        z_dim=16,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
    )
    return quiet(
        diffusers.WanPipeline(
            tokenizer=tokenizer,
            text_encoder=encoder,
            vae=vae,
            scheduler=make_scheduler("UniPCMultistepScheduler", **FLOW),
            transformer=network(),
            transformer_2=network() if experts else None,
            boundary_ratio=0.6 if experts else None,
        )
    )


def qwen_image() -> Any:
    """Qwen-Image: packed latents 16x16 (of 4x8x8), a video decoder for one frame."""
    import diffusers
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(0)
    tokenizer = qwen_tokenizer()
    small = {"hidden_size": 16, "intermediate_size": 16}
    rope = {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"}
    config = Qwen2_5_VLConfig(
        text_config={
            **small, "vocab_size": len(tokenizer), "num_hidden_layers": 1, "rope_scaling": rope,
            "num_attention_heads": 2, "num_key_value_heads": 2, "rope_theta": 1e6,
            "bos_token_id": 1, "eos_token_id": 2,
        },
        vision_config={**small, "depth": 1, "num_heads": 2, "out_hidden_size": 16},
        **SPECIAL,
    )  # fmt: skip
    transformer = diffusers.QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    )
    vae = diffusers.AutoencoderKLQwenImage(
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 1],
        num_res_blocks=1,
        temperal_downsample=[False],
        latents_mean=[0.1, -0.2, 0.0, 0.3],
        latents_std=[1.0, 1.5, 0.8, 1.1],
    )
    return quiet(
        diffusers.QwenImagePipeline(
            scheduler=make_scheduler("FlowMatchEulerDiscreteScheduler", use_dynamic_shifting=True),
            vae=vae,
            text_encoder=Qwen2_5_VLForConditionalGeneration(config),
            tokenizer=tokenizer,
            transformer=lively(transformer),
        )
    )


def flux2(klein: bool = False) -> Any:
    """Flux.2: packed latents 16x16 (of 4x8x8), text of three layers of a language model, embedded
    guidance. `klein`: true guidance instead, and another language model."""
    import diffusers
    from transformers import (
        Mistral3Config,
        Mistral3ForConditionalGeneration,
        Qwen3Config,
        Qwen3ForCausalLM,
    )  # fmt: skip

    torch.manual_seed(0)
    tokenizer = qwen_tokenizer()
    small = {
        "vocab_size": len(tokenizer), "hidden_size": 8, "intermediate_size": 8, "head_dim": 4,
        "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 31,
        "max_position_embeddings": 64, "pad_token_id": 0,
    }  # fmt: skip
    if klein:
        encoder = Qwen3ForCausalLM(Qwen3Config(**small))
    else:
        eye = {
            "model_type": "pixtral", "hidden_size": 8, "intermediate_size": 8, "image_size": 8,
            "num_attention_heads": 2, "num_hidden_layers": 1, "patch_size": 4,
        }  # fmt: skip
        words = {**small, "model_type": "mistral", "sliding_window": None}
        encoder = Mistral3ForConditionalGeneration(
            Mistral3Config(text_config=words, vision_config=eye, image_token_index=1)
        )
    transformer = diffusers.Flux2Transformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=not klein,
    )
    vae = diffusers.AutoencoderKLFlux2(
        sample_size=16,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(4, 4),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=2,
    )
    vae.bn.running_mean.copy_(torch.linspace(-0.3, 0.3, 16))
    vae.bn.running_var.copy_(torch.linspace(0.5, 2.0, 16))
    kind = diffusers.Flux2KleinPipeline if klein else diffusers.Flux2Pipeline
    return quiet(
        kind(
            scheduler=make_scheduler("FlowMatchEulerDiscreteScheduler", use_dynamic_shifting=True),
            vae=vae,
            text_encoder=encoder,
            tokenizer=tokenizer,
            transformer=lively(transformer),
        )
    )


def z_image() -> Any:
    """Z-Image: latents 4x8x8, texts of their own lengths."""
    import diffusers
    from transformers import Qwen3Config, Qwen3Model

    torch.manual_seed(0)
    tokenizer = qwen_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=8, max_position_embeddings=64,
    )  # fmt: skip
    transformer = diffusers.ZImageTransformer2DModel(
        all_patch_size=(2,),
        all_f_patch_size=(1,),
        in_channels=4,
        dim=32,
        n_layers=1,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=16,
        axes_dims=[8, 4, 4],
        axes_lens=[256, 32, 32],
    )
    for empty in (transformer.x_pad_token, transformer.cap_pad_token):
        torch.nn.init.zeros_(empty)  # as built, they are not set
    return quiet(
        diffusers.ZImagePipeline(
            scheduler=make_scheduler("FlowMatchEulerDiscreteScheduler", shift=3.0),
            vae=kl_vae(4, shift_factor=0.1),
            text_encoder=Qwen3Model(config),
            tokenizer=tokenizer,
            transformer=lively(transformer),
        )
    )


def lumina2() -> Any:
    """Lumina 2: latents 4x4x4, eight times smaller than the image."""
    import diffusers

    torch.manual_seed(0)
    encoder, tokenizer = gemma(layers=2)
    transformer = diffusers.Lumina2Transformer2DModel(
        sample_size=4,
        patch_size=2,
        in_channels=4,
        hidden_size=16,
        num_layers=1,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=16,
        axes_dim_rope=(4, 2, 2),
        axes_lens=(400, 64, 64),
        cap_feat_dim=16,
    )
    return quiet(
        diffusers.Lumina2Pipeline(
            transformer=lively(transformer),
            scheduler=make_scheduler("FlowMatchEulerDiscreteScheduler", shift=6.0),
            vae=kl_vae(4, blocks=4, shift_factor=0.1),
            text_encoder=encoder,
            tokenizer=tokenizer,
        )
    )


def hunyuan_video() -> Any:
    """HunyuanVideo: video latents 4x2x4x4, embedded guidance, two text encoders."""
    import diffusers
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    tokenizer = qwen_tokenizer()
    second, tokenizer_2 = clip(8, length=77)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_attention_heads=2,
        num_hidden_layers=3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    transformer = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=10,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        patch_size=1,
        patch_size_t=1,
        guidance_embeds=True,
        text_embed_dim=16,
        pooled_projection_dim=8,
        rope_axes_dim=(2, 4, 4),
    )
    vae = diffusers.AutoencoderKLHunyuanVideo(
        latent_channels=4,
        down_block_types=("HunyuanVideoDownBlock3D",) * 4,
        up_block_types=("HunyuanVideoUpBlock3D",) * 4,
        block_out_channels=(4, 4, 4, 4),
        layers_per_block=1,
        norm_num_groups=2,
        mid_block_add_attention=False,
    )
    return quiet(
        diffusers.HunyuanVideoPipeline(
            text_encoder=LlamaModel(config),
            tokenizer=tokenizer,
            transformer=lively(transformer),
            vae=vae,
            scheduler=make_scheduler("FlowMatchEulerDiscreteScheduler", shift=7.0),
            text_encoder_2=second,
            tokenizer_2=tokenizer_2,
        )
    )


def ltx(timed: bool = False) -> Any:
    """LTX-Video: tokens 32x8 (of video latents 8x2x4x4). `timed`: a decoder that takes a time."""
    import diffusers

    torch.manual_seed(0)
    encoder, tokenizer = t5(16)
    transformer = diffusers.LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        num_layers=1,
        caption_channels=16,
    )
    vae = diffusers.AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=(4, 4, 4, 4),
        decoder_block_out_channels=(4, 4, 4, 4),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, False, False),
        decoder_spatio_temporal_scaling=(True, True, False, False),
        decoder_inject_noise=(False,) * 5,
        upsample_residual=(False,) * 4,
        upsample_factor=(1,) * 4,
        timestep_conditioning=timed,
        patch_size=1,
        patch_size_t=1,
    )
    vae.latents_mean.copy_(torch.linspace(-0.2, 0.2, 8))
    vae.latents_std.copy_(torch.linspace(0.5, 1.5, 8))
    return quiet(
        diffusers.LTXPipeline(
            scheduler=make_scheduler("FlowMatchEulerDiscreteScheduler", use_dynamic_shifting=True),
            vae=vae,
            text_encoder=encoder,
            tokenizer=tokenizer,
            transformer=lively(transformer),
        )
    )


TINY: dict[str, Callable[[], Any]] = {
    "ddpm": ddpm,
    "ldm": ldm,
    "dit": dit,
    "sd": sd,
    "sd-v": lambda: sd("DDIMScheduler", prediction_type="v_prediction", clip_sample=False),
    "sd-flow": lambda: sd("DPMSolverMultistepScheduler", **FLOW),
    "sdxl": sdxl,
    "sd3": sd3,
    "flux": flux,
    "flux-schnell": lambda: flux(guidance_embeds=False),
    "sana": sana,
    "wan": wan,
    "wan-experts": lambda: wan(experts=True),
    "sd3-medium": lambda: sd3(medium=True),
    "qwen": qwen_image,
    "flux2": flux2,
    "klein": lambda: flux2(klein=True),
    "zimage": z_image,
    "lumina2": lumina2,
    "hunyuan": hunyuan_video,
    "ltx": ltx,
    "ltx-timed": lambda: ltx(timed=True),
}
"""Name -> a tiny pipeline of that family."""

PROMPTS = ("a dog", "two cats", "rain")

NEGATIVE = "mud mud."  # as long as the longest prompt

SQUARE: dict[str, Any] = {
    "prompt": list(PROMPTS[:2]), "height": 16, "width": 16, "max_sequence_length": LENGTH,
}  # fmt: skip

CALLS: dict[str, dict[str, Any]] = {
    "ddpm": {},
    "ldm": {},
    "dit": {"class_labels": [3, 4]},
    "sd": {"prompt": list(PROMPTS[:2]), "height": 16, "width": 16},
    "sdxl": {"prompt": list(PROMPTS[:2]), "height": 16, "width": 16},
    "sd3": {
        "prompt": list(PROMPTS[:2]),
        "height": 16,
        "width": 16,
        "max_sequence_length": LENGTH,
    },
    "flux": {
        "prompt": list(PROMPTS[:2]),
        "height": 16,
        "width": 16,
        "max_sequence_length": LENGTH,
    },
    "sana": {
        "prompt": list(PROMPTS[:2]),
        "height": 32,
        "width": 32,
        "use_resolution_binning": False,
        "max_sequence_length": LENGTH,
    },
    "wan": {
        "prompt": list(PROMPTS[:2]),
        "height": 64,
        "width": 64,
        "num_frames": 5,
        "max_sequence_length": LENGTH,
    },
    "qwen": SQUARE,
    "flux2": SQUARE,
    "klein": SQUARE,
    "zimage": SQUARE,
    "lumina2": {**SQUARE, "height": 32, "width": 32, "max_sequence_length": 200},
    "hunyuan": {
        "prompt": list(PROMPTS[:2]),
        "height": 32,
        "width": 32,
        "num_frames": 5,
        "max_sequence_length": 560,  # the words around the prompt are in it
    },
    "ltx": {**SQUARE, "height": 32, "width": 32, "num_frames": 5},
}
"""What `pipe(...)` of a family is called with, besides steps, guidance, latents and output."""

SPECIAL = {
    "vision_start_token_id": 1, "vision_end_token_id": 2, "vision_token_id": 1,
    "image_token_id": 1, "video_token_id": 2,
}  # fmt: skip
SD = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 3.0}
LDM = {"beta_schedule": "scaled_linear", "beta_start": 0.0015, "beta_end": 0.0195}


def make_scheduler(name: str, **config: Any) -> Any:
    """A stock scheduler by its class name."""
    import diffusers

    return getattr(diffusers, name)(**config)


def kl_vae(channels: int, blocks: int = 2, **config: Any) -> Any:
    """A decoder from channels x 8 x 8 to 3x16x16, or with more blocks to larger images."""
    import diffusers

    return diffusers.AutoencoderKL(
        block_out_channels=(8,) * blocks,
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        latent_channels=channels,
        norm_num_groups=4,
        layers_per_block=1,
        sample_size=16,
        **config,
    )


def plain_unet() -> Any:
    """A UNet without conditions: 3x8x8."""
    import diffusers

    return diffusers.UNet2DModel(
        sample_size=8,
        in_channels=3,
        out_channels=3,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=8,
    )


def condition_unet(**config: Any) -> Any:
    """A UNet that looks at text: 4x8x8."""
    import diffusers

    return lively(
        diffusers.UNet2DConditionModel(
            sample_size=8,
            in_channels=4,
            out_channels=4,
            block_out_channels=(8, 16),
            layers_per_block=1,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            norm_num_groups=4,
            attention_head_dim=2,
            **config,
        )
    )


def clip(width: int, projected: bool = False, length: int = LENGTH) -> tuple[Any, Any]:
    """A CLIP text encoder, and its tokenizer."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    tokenizer = clip_tokenizer()
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        projection_dim=width,
        intermediate_size=width,
        num_attention_heads=2,
        num_hidden_layers=2,
        max_position_embeddings=length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    encoder = (CLIPTextModelWithProjection if projected else CLIPTextModel)(config)
    return encoder, tokenizer


def clip_tokenizer() -> Any:
    """CLIP's tokenizer with letters for its vocabulary."""
    from transformers import CLIPTokenizer

    tokens = ["<|startoftext|>", "<|endoftext|>", *WORDS, *(f"{c}</w>" for c in WORDS)]
    vocab = {token: n for n, token in enumerate(tokens)}
    return CLIPTokenizer(vocab=vocab, merges=[], model_max_length=LENGTH)


def gemma(layers: int = 1) -> tuple[Any, Any]:
    """A Gemma 2 encoder, and its tokenizer."""
    from transformers import Gemma2Config, Gemma2Model, GemmaTokenizer

    marks = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
    tokens = [*marks, "▁", *WORDS, *WORDS.upper()]
    vocab = {token: n for n, token in enumerate(dict.fromkeys(tokens))}
    config = Gemma2Config(
        vocab_size=len(vocab),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    return Gemma2Model(config), GemmaTokenizer(vocab=vocab, merges=[])


def qwen_tokenizer() -> Any:
    """Qwen's tokenizer with letters for its vocabulary, and a chat of the user's words alone."""
    from transformers import Qwen2Tokenizer

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *WORDS, *WORDS.upper(), "Ġ", "Ċ"]
    vocab = {token: n for n, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=[])
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' %}{% if m.content is string %}"
        "{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}{% endif %}{% endfor %}"
    )
    return tokenizer


def t5(width: int) -> tuple[Any, Any]:
    """A T5 encoder, and its tokenizer."""
    from transformers import T5Config, T5EncoderModel

    tokenizer = t5_tokenizer()
    shape = {"d_model": width, "d_kv": 8, "d_ff": width, "num_layers": 1, "num_heads": 2}
    return T5EncoderModel(T5Config(vocab_size=len(tokenizer), **shape)), tokenizer


def t5_tokenizer() -> Any:
    """T5's tokenizer with letters for its vocabulary."""
    from transformers import T5TokenizerFast

    marks = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    letters = [(letter, -3.0) for letter in WORDS]
    return T5TokenizerFast(vocab=[*marks, *letters], extra_ids=0)


def lively(network: Any) -> Any:
    """Random weights everywhere: as built, many layers end in zeros and answer nothing."""
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn_like(weight) / weight[0].numel() ** 0.5)
            elif bool((weight == 0).all()):
                weight.copy_(0.1 * torch.randn_like(weight))
    return network


def quiet(pipe: Any) -> Any:
    """Ready to run, without progress bars."""
    for part in pipe.components.values():
        if isinstance(part, torch.nn.Module):
            part.eval().requires_grad_(False)
    pipe.set_progress_bar_config(disable=True)
    return pipe
