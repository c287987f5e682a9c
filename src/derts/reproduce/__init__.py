"""The paper, to be run again: its numbers, its recipes, its tables.

paper        the paper's numbers             recipes/   grids and settings, as TOML
recipe       a name -> cells                 job        a cell and a seed -> a run to be done
running      one run, resumable              grid       many runs, on one device or several
on_ray       many runs, on a cluster         board      how far they are
outcomes     run folders -> numbers          planning   what is left, and how long it takes
report       numbers -> tables               curves, case_study   figures
experiment   what one command asks for
"""
