"""Molecular docking: ligands, exact problems, and an adapter for DiffDock. Extra `docking`."""
