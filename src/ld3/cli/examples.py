"""Examples at the end of each `--help`: of `ld3` itself, and by command."""

FIRST = (
    "ld3 learn                                  on the small model inside",
    "ld3 init my_model.py                       for a network of your own",
    "ld3 learn --model diffusers:FOLDER         for a diffusers pipeline",
    "ld3 sample --plan plan.json --seeds 0-63   draw with a plan",
    "ld3 learn --help                           all options of a command",
)
EXAMPLES = {
    "learn": (
        "ld3 learn",
        "ld3 learn --model my_model:make --nfe 5",
        "ld3 learn --model diffusers:FOLDER --guidance 7.5 --nfe 4,6 --device cuda",
        "ld3 learn --nfe 4-10 --refine",
    ),
    "sample": (
        "ld3 sample --plan plan.json --seeds 0-63",
        "ld3 sample --plan plan.json --model my_model:make --seeds 1,5,9",
    ),
    "score": ("ld3 score plan.json --guidance 1,2,4",),
    "show": ("ld3 show plan.json --image times.png", "ld3 show plan.json --as comfyui"),
    "export": (
        "ld3 export plan.json --to diffusers",
        "ld3 export plan.json --to comfyui-pack --out exported",
    ),
    "import": ("ld3 import ays-sd15 --schedule sd --prediction eps --steps 10",),
    "compare": (
        "ld3 compare --model fashion --solvers dpmpp,unipc --nfe 4,6",
        "ld3 compare --methods edm,logsnr,dmn,ld3 --seeds 3 --full",
    ),
    "report": ("ld3 report compare/compare.json",),
    "reproduce": (
        "ld3 reproduce --list",
        "ld3 reproduce fid-grid --model FILE --data REFERENCE --nfe 5 --quick",
    ),
    "evaluate": (
        "ld3 evaluate plan.json logsnr --samples 50000 --data cifar10-32x32.npz",
        "ld3 evaluate plan.json --samples 50000 --dry-run",
    ),
    "reference": ("ld3 reference images/ reference.npz",),
    "inspect": ("ld3 inspect edm-cifar10-32x32-uncond-vp.pkl",),
    "convert": ("ld3 convert model.ckpt model.safetensors",),
    "init": ("ld3 init my_model.py",),
    "solvers": ("ld3 solvers", "ld3 solvers --json"),
    "methods": ("ld3 methods", "ld3 methods --json"),
    "schedules": ("ld3 schedules", "ld3 schedules --json"),
    "models": ("ld3 models", "ld3 models --json"),
    "zoo": ("ld3 zoo index plans", "ld3 zoo list plans", "ld3 zoo check plans"),
    "zoo list": ("ld3 zoo list plans", "ld3 zoo list https://ADDRESS --json"),
    "zoo get": ("ld3 zoo get plans NAME --out plan.json",),
    "zoo check": ("ld3 zoo check plans",),
    "zoo index": ("ld3 zoo index plans --title 'My plans'",),
}
