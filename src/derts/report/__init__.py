"""Stage 11: tables and pictures of what was measured.

read         run folders -> groups of runs that differ in the seed alone, and their tables
page         those -> the page of `derts report`, with figures and a map of the pool (pool_map)
review       judged labels -> the page of `derts inspect`
tables, pictures   rows as text and HTML, items on a sheet
"""
