"""Teaching a policy: what it is shown in a world, grouped by the state that was edited."""

from __future__ import annotations

import asyncio

from toolwright.workflow.teach import explored


def test_every_edit_of_a_state_is_tried_and_grouped_by_it() -> None:
    tried = asyncio.run(explored([20_001]))
    assert len({(one.search, one.number) for one in tried}) == len(tried)
    states = {one.anchor for one in tried}
    for anchor in states:
        mine = [one for one in tried if one.anchor == anchor]
        assert len({one.edit for one in mine}) == len({one.child for one in mine}) == len(mine) > 10
        assert len({one.before for one in mine}) == 1
        assert len({one.gain for one in mine}) > 1
    assert tried == asyncio.run(explored([20_001]))
