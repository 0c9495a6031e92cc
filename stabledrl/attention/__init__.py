"""How a policy looks at prompt and completion when it scores them (group `attention`).

`Bidirectional` is for models that see everything. A block-causal model writes a block knowing the
blocks before it, so it needs every block twice: clean for the blocks behind, noisy to be scored.
`Staircase` puts both into one pass, `BlockSeparate` makes one pass for every block.
"""
