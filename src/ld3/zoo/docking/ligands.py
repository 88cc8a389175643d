"""Ten drugs as exact docking problems: five random poses each, the noise of DiffDock v1.

ld3 learn --model ld3.zoo.docking.ligands:lidocaine --solver euler-log
"""

from ld3.errors import unknown
from ld3.zoo.docking.diffdock import NoiseLevels
from ld3.zoo.docking.exact import ExactDocking, exact_docking
from ld3.zoo.docking.ligand import Ligand

SMILES = {
    "aspirin": "CC(=O)Oc1ccccc1C(=O)O",
    "ibuprofen": "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "lidocaine": "CCN(CC)CC(=O)Nc1c(C)cccc1C",
    "sulfamethoxazole": "Cc1cc(NS(=O)(=O)c2ccc(N)cc2)no1",
    "propranolol": "CC(C)NCC(O)COc1cccc2ccccc12",
    "diphenhydramine": "CN(C)CCOC(c1ccccc1)c1ccccc1",
    "trimethoprim": "COc1cc(Cc2cnc(N)nc2N)cc(OC)c1OC",
    "fluoxetine": "CNCCC(Oc1ccc(cc1)C(F)(F)F)c1ccccc1",
    "warfarin": "CC(=O)CC(c1ccccc1)C1=C(O)c2ccccc2OC1=O",
    "haloperidol": "O=C(CCCN1CCC(O)(CC1)c1ccc(Cl)cc1)c1ccc(F)cc1",
}


def problem(name: str) -> ExactDocking:
    """The problem of a drug, by name; each has other poses."""
    if name not in SMILES:
        raise unknown("ligand", name, SMILES)
    ligand = Ligand.from_smiles(SMILES[name], name)
    return exact_docking(ligand, NoiseLevels.of("v1").schedule, seed=list(SMILES).index(name))


def __getattr__(name: str) -> object:
    """`ligands:NAME` as a model of the command line: a function for each drug."""
    if name in SMILES:
        return lambda: problem(name)
    raise AttributeError(f"got {name!r}, expected one of {', '.join(SMILES)}")
