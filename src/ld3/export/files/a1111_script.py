"""AUTOMATIC1111 and Forge: a schedule type and a sampler, both called NAME."""

from ld3.export.files.a1111_lists import register_all

NAME = "LD3"  # filled in by ld3 export
PLANS = []  # filled in by ld3 export

if PLANS:
    register_all({NAME: PLANS})
