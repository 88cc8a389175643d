"""Ligands: heavy atoms of a molecule, one conformer, and the bonds that can turn.

A bond is rotatable if the molecule falls apart without it and the smaller part has more than one
atom. That part turns about the bond u-v, v being its own end. Coordinates are in Angstrom.

Needs RDKit, the extra `docking`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ld3.errors import ModelError
from ld3.store import tensor_checksum

MAX_ATOMS = 500
MAX_SYMMETRIES = 100_000
CONFORMER_SEED = 7


@dataclass(frozen=True, eq=False)
class Ligand:
    """A molecule as docking sees it."""

    name: str
    molecule: Any  # of RDKit, without hydrogens
    positions: Tensor  # (n, 3) float64, centred
    bonds: Tensor  # (k, 2): u, v of the rotatable ones
    masks: Tensor  # (k, n): the atoms that turn, v among them

    @property
    def atoms(self) -> int:
        return len(self.positions)

    @property
    def torsions(self) -> int:
        return len(self.bonds)

    @property
    def elements(self) -> list[str]:
        return [atom.GetSymbol() for atom in self.molecule.GetAtoms()]

    @property
    def edges(self) -> list[tuple[int, int]]:
        """All bonds, rotatable or not."""
        return _edges(self.molecule)

    @cached_property
    def digest(self) -> str:
        """A name for all that poses depend on."""
        return tensor_checksum(
            {"positions": self.positions, "bonds": self.bonds, "masks": self.masks}
        )

    @cached_property
    def symmetries(self) -> Tensor:
        """The orders of atoms (S, n) that give the same molecule; the first is the identity."""
        found = self.molecule.GetSubstructMatches(
            self.molecule, uniquify=False, maxMatches=MAX_SYMMETRIES
        )
        own = tuple(range(self.atoms))
        return torch.tensor([own, *(match for match in found if match != own)])

    @classmethod
    def from_smiles(cls, smiles: str, name: str = "", seed: int = CONFORMER_SEED) -> "Ligand":
        """With a conformer of RDKit's distance geometry (ETKDG) and the MMFF force field."""
        chem, distance_geometry = _rdkit()
        molecule = chem.MolFromSmiles(smiles) if smiles.strip() else None
        if molecule is None or molecule.GetNumAtoms() == 0:
            raise ModelError(f"ligand: got {smiles[:80]!r}, expected the SMILES of a molecule")
        _check_size(molecule, name or smiles)
        full = chem.AddHs(molecule)
        if distance_geometry.EmbedMolecule(full, randomSeed=seed) != 0:
            raise ModelError(
                f"ligand: got no conformer of {smiles[:80]!r} from RDKit; give a file with "
                "coordinates (Ligand.from_file)"
            )
        if distance_geometry.MMFFHasAllMoleculeParams(full):
            distance_geometry.MMFFOptimizeMolecule(full)
        return cls.of(chem.RemoveHs(full), name or smiles)

    @classmethod
    def from_file(cls, path: Path | str) -> "Ligand":
        """The first molecule of an SDF or MOL file, with its coordinates."""
        chem, _ = _rdkit()
        file = Path(path)
        try:
            block = file.read_text(errors="replace")
        except OSError as error:
            raise ModelError(f"ligand: got {file}: {error.strerror}, expected a file") from None
        molecule = chem.MolFromMolBlock(block.split("$$$$")[0], removeHs=True)
        if molecule is None or molecule.GetNumAtoms() == 0:
            raise ModelError(
                f"ligand: got {file}, which RDKit cannot read, expected an SDF or MOL file of one "
                "molecule"
            )
        return cls.of(molecule, file.stem)

    @classmethod
    def of(cls, molecule: Any, name: str = "ligand") -> "Ligand":
        """An RDKit molecule without hydrogens, with one conformer in three dimensions."""
        _check_size(molecule, name)
        if not molecule.GetNumConformers() or not molecule.GetConformer().Is3D():
            raise ModelError(
                f"ligand: got {name} without coordinates in three dimensions, expected a "
                "conformer; make one with Ligand.from_smiles"
            )
        raw = torch.tensor(molecule.GetConformer().GetPositions().tolist(), dtype=torch.float64)
        edges = _edges(molecule)
        if len(_reached(0, edges, len(raw))) != len(raw):
            raise ModelError(f"ligand: got {name} in several pieces, expected one molecule")
        bonds, masks = rotatable(len(raw), edges)
        return cls(name, molecule, raw - raw.mean(0), bonds, masks)


def rotatable(atoms: int, edges: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Rotatable bonds (k, 2) and the atoms that each turns (k, n), in the order of the edges.

    Of two parts of one size the one with the first atom turns.
    """
    bonds, masks = [], []
    for edge in edges:
        rest = [other for other in edges if other != edge]
        first = _reached(0, rest, atoms)
        if len(first) == atoms:
            continue
        other = set(range(atoms)) - first
        part = first if len(first) <= len(other) else other
        if len(part) > 1:
            bonds.append(edge if edge[1] in part else edge[::-1])
            masks.append([atom in part for atom in range(atoms)])
    shape = (len(bonds), atoms)
    return (
        torch.tensor(bonds, dtype=torch.long).view(-1, 2),
        torch.tensor(masks, dtype=torch.bool).view(shape),
    )


def _reached(start: int, edges: Sequence[tuple[int, int]], atoms: int) -> set[int]:
    """Atoms connected to one."""
    near: list[list[int]] = [[] for _ in range(atoms)]
    for u, v in edges:
        near[u].append(v)
        near[v].append(u)
    found, left = {start}, [start]
    while left:
        for atom in near[left.pop()]:
            if atom not in found:
                found.add(atom)
                left.append(atom)
    return found


def _edges(molecule: Any) -> list[tuple[int, int]]:
    return [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]


def _check_size(molecule: Any, name: str) -> None:
    if molecule.GetNumAtoms() > MAX_ATOMS:
        raise ModelError(
            f"ligand: got {name} with {molecule.GetNumAtoms()} atoms, expected at most {MAX_ATOMS}"
        )


def _rdkit() -> tuple[Any, Any]:
    try:
        from rdkit import Chem, RDLogger
        from rdkit.Chem import AllChem
    except ImportError:
        raise ModelError("ligand: RDKit is missing; pip install 'ld3[docking]'") from None
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]
    return Chem, AllChem
