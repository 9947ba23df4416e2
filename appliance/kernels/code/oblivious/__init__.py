"""Text to tokens and back without an address that depends on a text: tables are swept page by page.

    sweep      one page of a table for 16 entries at a time
    cut        special tokens, classes of characters, and the words of a text
    merge      symbols of words to tokens, in rounds
    whole      words that are tokens without merges
    choice     the place of a draw, and the bytes of a token
    order      the highest logits, rows brought to the front or sorted, and sums by token
"""
