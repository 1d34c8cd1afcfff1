"""Whether a shorter sequence can be padded with zeros and run as a longer one, without effect on what it gives.

Proven on two Graphs of one model, at lengths N > n, never assumed:

1. They are the same but for the length (``graphs.py``).
2. Every tensor of the shorter one stands in the same tensor of the longer: of each axis that is longer there it is
   known at which positions (``placed.py``). They follow from one operator to the next (``rules.py``), and at the end
   are the first n.
3. What lies at the other positions comes of zeros in the inputs, and has bounds (``bounds.py``). It comes into no
   element that counts: what is added up over it is zero there, and a softmax gives it no weight, as its score has the
   most negative number added to it, or is minus infinity.

A batch is a length too: nothing is added up over it.

So the shorter one's results are those of the longer at these positions, up to the order in which sums are added up: for
numbers that do not overflow, and a mask that leaves every softmax one position of the sequence's own. What has no rule
here is not proven.
"""

from mononn_core.compiler.padding.graphs import Axes, KnownValues, Padding

__all__ = ["Axes", "KnownValues", "Padding"]
