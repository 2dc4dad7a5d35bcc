"""What clients of Delta tables can do: released engines, table features and redirects, as data.

``known_lines`` is the data, ``client_lines`` says what a line of it means, ``readability`` and
``redirect_effects`` are questions to it, ``wish_effects`` joins them for one table and one wish.
Nothing here reads a table.
"""
