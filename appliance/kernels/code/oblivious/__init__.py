"""Text to tokens and back without an address that depends on a text: tables are swept page by page.
No jump depends on one, either.

    sweep      a table for 64 places at a time, and choices without jumps
    cut        special tokens, classes of characters, and the words of a text
    marked     the words and spaces of tokenizers by characters
    stop       stop strings
    read       the strings of a JSON text
    write      an answer's bytes to text, and to a string of JSON
    merge      symbols of words to tokens, in rounds
    whole      words that are tokens without merges
    choice     the place of a draw, and the bytes of a token
    order      the highest logits, rows brought to the front or sorted, and sums by token
"""
