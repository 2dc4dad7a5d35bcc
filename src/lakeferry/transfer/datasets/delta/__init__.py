"""A Delta table as a dataset: its chain follows its log, one block for each version.

``delta_dataset.py`` is the dataset. A sender makes blocks from its log (``blocks_of_log.py``); a
receiver judges them (``required_objects.py``) and turns them into commits
(``publishing_commits.py``).
"""
