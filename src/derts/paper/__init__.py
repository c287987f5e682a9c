"""The paper, to be run again: its numbers, its recipes, its tables.

paper.json  the paper's numbers          recipes/    grids and settings, as TOML
cells       a table's name -> cells      runs        a cell and a seed -> a config and its folder
grid        runs on this machine or on a Ray cluster
collect     run folders and result files -> numbers of cells
report      numbers -> tables            figures     curves and the case study's pictures
experiment  what one command asks for
"""
