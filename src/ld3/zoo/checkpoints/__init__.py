"""Published checkpoints in their original files: read without running them, as models.

>>> model = load_checkpoint("edm-cifar10-32x32-uncond-vp.pkl")   # doctest: +SKIP
"""
