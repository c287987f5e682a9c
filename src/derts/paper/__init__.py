"""The paper, to be run again: its numbers, its recipes, its tables.

paper.json  the paper's numbers          recipes/    grids and settings, as TOML
cells       a table's name -> cells      recipes     a cell and a seed -> a config
runs        configs -> runs, with their folders and what is left to do
grid        runs on this machine         on_ray      runs on a Ray cluster
collect     run folders and result files -> numbers of cells
report      numbers -> tables            figures     curves and the case study's pictures
experiment  what one command asks for
"""
