"""The drop-in: a user's own training loop answers what an algorithm asks for.

    with ownpace.join(algorithm="balanced") as fleet:
        model, optimizer = fleet.wrap(model, optimizer)
        for x, y in fleet.batches(dataset, batch_size=64, epochs=5):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

The algorithm is the same coroutine that a complete run drives. When it asks for a gradient it is suspended;
`fleet.batches` hands out as many samples as it asked for, and `optimizer.step()` brings it their gradient and lets it
go on (to sum, wait, step) until it asks for the next.
"""

from ownpace.drop_in.joined import Joined
from ownpace.drop_in.joining import join

__all__ = ["Joined", "join"]
