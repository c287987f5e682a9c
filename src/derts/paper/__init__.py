"""The paper, to be run again: its numbers, its recipes, its tables.

paper        the paper's numbers             recipes/   grids and settings, as TOML
recipe       a name -> cells                 scale      fewer updates, other data
job          a cell and a seed -> a run      running    one run, resumable
grid         many runs, on GPUs or CPUs      on_ray     many runs, on a cluster
planning     what is left, and how long      board      how far they are
outcomes     run folders -> numbers          report     numbers -> tables
experiment   what one command asks for       curves, case_study   figures
"""
