"""The workshop beside the library: the paper's experiments, case studies, published baselines, and the report on them.

``python -m research`` lists the commands. The library imports nothing from here.
"""
