"""Prompts for the demo model: prose, code, languages, numbers, chats; from one token to about five hundred.

A text that starts with "<|im_start|>" is a chat, already through the model's template.
"""

from __future__ import annotations


def _chat(*turns: str, system: str = "You are a helpful AI assistant named SmolLM, trained by Hugging Face") -> str:
    """User and assistant in turn, ready for the assistant to answer."""
    text = f"<|im_start|>system\n{system}<|im_end|>\n"
    for number, turn in enumerate(turns):
        text += f"<|im_start|>{('user', 'assistant')[number % 2]}\n{turn}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


_REPORT = """The lighthouse on the northern cape was built in 1874, after three ships had been lost in a single winter.
Its keeper lived with his family in a stone cottage below the tower, and for nearly forty years the light was fed with
whale oil, then with paraffin, before electricity came over the hills in the summer of 1913. The logbooks, which are
kept today in the harbour museum, record the weather four times a day, the ships that passed, and every repair to the
lamp. They also record smaller things: the birth of a calf, a visit by the schoolteacher, a storm that carried the
henhouse into the sea with eleven hens in it. "Wind north-west, force ten," the keeper wrote that evening. "We shall
have no eggs." In 1952 the service decided to automate the light. The last keeper, a woman named Ingrid Dahl who had
taken over from her father, argued against it for two years, in letters that grew shorter as the replies grew longer.
When the engineers finally arrived she showed them every valve and every cable, made them coffee, and then walked down
to the village without looking back. For a while nobody lived on the cape at all. The cottage lost its roof in the
gales of 1968, and sheep sheltered in the kitchen. Then, in the eighties, a group of ornithologists noticed that
migrating birds used the headland as a resting place in numbers that nobody had expected: goldcrests, redwings,
sometimes a bluethroat, and one morning in October more than nine thousand thrushes. They rebuilt the cottage with
their own hands and a small grant, and since then the logbooks have been continued. The weather is still noted four
times a day. The ships are counted by a satellite now, so the observers count birds instead, and every repair to the
roof. The museum has asked several times whether the old books and the new ones might be shown side by side. The
observers have always agreed, on one condition, which"""

_CODE = '''import heapq
from collections import defaultdict


class Graph:
    """A directed graph with non-negative edge weights."""

    def __init__(self):
        self.edges = defaultdict(list)

    def add_edge(self, source, target, weight):
        if weight < 0:
            raise ValueError(f"negative weight: {weight}")
        self.edges[source].append((target, weight))

    def neighbours(self, node):
        return iter(self.edges[node])


def shortest_paths(graph, start):
    """Return a dictionary of the distance from start to every node that can be reached."""
    distances = {start: 0}
    queue = [(0, start)]
    while queue:
        distance, node = heapq.heappop(queue)
        if distance > distances[node]:
            continue
        for neighbour, weight in graph.neighbours(node):
            candidate = distance + weight
            if neighbour not in distances or candidate < distances[neighbour]:
                distances[neighbour] = candidate
                heapq.heappush(queue, (candidate, neighbour))
    return distances


def path_to(graph, start, goal):
    """Return the list of nodes on a shortest path from start to goal, or None when there is none."""
'''

_TABLE = "date,station,temperature,humidity,pressure\n" + "".join(
    f"2023-{1 + i % 12:02d}-{1 + i * 7 % 28:02d},{'ABC'[i % 3]}{i % 5},{12.5 + i * 0.75:.2f},{40 + i * 3 % 50},"
    f"{1000 + i * 2}\n"
    for i in range(14))

PROMPTS: tuple[str, ...] = (
    "Hello",
    "The capital of France is",
    "Once upon a time, in a village between two rivers,",
    "Water boils at 100 degrees Celsius at sea level because",
    "Dear Ms. Alvarez,\n\nThank you for your letter of 3 March. I am writing to let you know that",
    "Photosynthesis is the process by which plants",
    "It was the best of times, it was the worst of times, it was the age of wisdom,",
    "To be, or not to be, that is the question:",
    "Recipe: Lentil soup for four\n\nIngredients:\n- 250 g red lentils\n- 1 onion\n- 2 carrots\n-",
    "Breaking news: scientists at the University of Oslo announced on Tuesday that",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "#include <stdio.h>\n\nint main(int argc, char **argv) {\n    for (int i = 0; i < argc; i++) {\n",
    "SELECT c.name, COUNT(o.id) AS orders\nFROM customers c\nLEFT JOIN orders o ON o.customer_id = c.id\nWHERE",
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n  <meta charset=\"utf-8\">\n  <title>Contact</title>\n",
    '{"name": "widget", "version": "1.4.2", "dependencies": {"left-pad": "^1.3.0", "express":',
    "#!/bin/sh\nset -eu\n# Back up every database, keep the last seven archives\nfor db in $(psql -At -c",
    "impl<T: Ord> BinaryTree<T> {\n    pub fn insert(&mut self, value: T) -> bool {\n        match self {\n",
    _CODE,
    "1, 1, 2, 3, 5, 8, 13, 21, 34,",
    "3.14159 + 2.71828 = 5.85987\n12 * 12 = 144\n17 * 23 =",
    "| Planet | Radius (km) | Moons |\n|---|---|---|\n| Mercury | 2440 | 0 |\n| Venus | 6052 | 0 |\n| Earth |",
    _TABLE,
    "Solve for x: 3x + 7 = 22. Subtracting 7 from both sides gives",
    "Il était une fois, dans une petite ville au bord de la mer, un vieux pêcheur qui",
    "Die Würde des Menschen ist unantastbar. Sie zu achten und zu schützen ist",
    "En un lugar de la Mancha, de cuyo nombre no quiero acordarme,",
    "Nel mezzo del cammin di nostra vita mi ritrovai per una selva oscura,",
    "Все счастливые семьи похожи друг на друга,",
    "人工知能とは、",
    "床前明月光，疑是地上霜。",
    "كان يا ما كان في قديم الزمان",
    "Καλημέρα κόσμε! Σήμερα",
    "Emoji party: 🎉🎊🥳 and then 🌍🌎🌏 follow",
    "https://example.org/articles/2021/05/how-to-bake-bread?ref=home&utm_source=",
    "the the the the the the the the the the the the",
    "   \n\n\t  indented\n\t\tmore\n",
    _REPORT,
    _chat("What is the capital of Norway?"),
    _chat("Write a haiku about autumn leaves."),
    _chat("List three uses of a paper clip.", "1. Holding papers together.\n2. Resetting a router.\n3. A zipper pull.",
          "Now explain the second one to a child."),
    _chat("Translate to German: The weather is nice today.", system="You translate. Answer with the translation only."),
    _chat("Summarise this text in one sentence.\n\n" + _REPORT[:900]),
    _chat("What does this function return for an empty graph?\n\n```python\n" + _CODE[:700] + "\n```"),
)
