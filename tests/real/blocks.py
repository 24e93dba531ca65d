"""What a rank's cache gains, keeps apart, loses and forgets."""

from itertools import pairwise
from random import Random

from chat import Conversation, Turn, pinned, request, send, words
from engine import RANKS
from figures import Figure, Figures, exactly, unpredicted, within_one_block
from harness import until
from router import Place
from world import World


def decoded(world: World) -> Figures:
    """A turn finds the blocks that the answer before it filled."""
    beyond_prompt = missed = 0
    with world.evidence.watch(world.engines) as turns:
        for number in range(4):
            conversation = Conversation(f"decoded/{number}", opening=100 + 10 * number, answer=3 * world.block)
            for _ in range(3):
                turns.append(conversation.turn(world.router.api))
            for before, turn in pairwise(conversation.turns):
                beyond_prompt += before.written - before.full_blocks
                missed += max(0, before.written - turn.cached)
    return {"tokens_of_answers": Figure(beyond_prompt, least=8 * 2 * world.block), "missed": exactly(missed, 0)}


def salt(world: World) -> Figures:
    """The same tokens under another salt are another tenant's."""
    chats = {it: Conversation("salt", salt=it) for it in ("tenant-a", "tenant-b", None)}
    place = world.places()[1]
    with world.evidence.watch(world.engines) as turns:
        first = [chat.turn(world.router.api, pinned(place), bound=False) for chat in chats.values()]
        again = [chat.turn(world.router.api, pinned(place), bound=False) for chat in chats.values()]
        turns += first + again
    found = [turn.cached == before.written == turn.overlap for before, turn in zip(first, again, strict=True)]
    return {
        "tenants": Figure(len(chats)),
        "credited_to_another": exactly(sum(turn.overlap or 0 for turn in first), 0),
        "cached_of_another": exactly(sum(turn.cached for turn in first), 0),
        "found_their_own": exactly(sum(found), len(chats)),
    }


def fill(world: World, place: Place, name: str, blocks: int) -> Turn:
    """Makes a rank use `blocks` blocks for something else."""
    # What the template adds and the one token of the answer leave the last block not full.
    body = request([{"role": "user", "content": words(name, blocks * world.block - 8)}], answer=1)
    return send(world.tiny_router.api, body, pinned(place))


def duplicates(world: World) -> Figures:
    """The same answer decoded twice is stored twice, and one copy's removal is not the loss of the other."""
    place = Place(world.tiny.worker, 0)
    router = world.tiny_router
    chat = Conversation("duplicates", opening=170)
    chat_again = Conversation("duplicates", opening=170)
    with world.evidence.watch([world.tiny]) as turns:
        turns.append(chat.turn(router.api, pinned(place), bound=False))
        until(lambda: router.blocks()[place] * world.block == chat.turns[0].written, "its blocks are known")
        held = router.blocks()[place]
        turns.append(chat_again.turn(router.api, pinned(place), bound=False))
        # Blocks never used go first, then those of the first time that the second did not share: the block
        # that the answer filled. Its copy, used later, stays.
        first, second = chat.turns[0], chat_again.turns[0]
        used = -(-(first.prompt + first.completion - 1) // world.block)
        unshared = used - second.cached // world.block
        rest = world.tiny.usable - used
        for number, blocks in enumerate((100, rest - 100)):
            turns.append(fill(world, place, f"duplicates/{number}", blocks))
        copies_left = router.held(chat_again.next_request())[place]
        turns.append(chat_again.turn(router.api, pinned(place), bound=False))
    last = chat_again.turns[1]
    return {
        "blocks_of_one_copy": Figure(held),
        "decoded_twice": exactly(unshared, 2),
        "predicted_by_the_other_copy": exactly(copies_left, first.written),
        "found_by_the_other_copy": exactly(last.cached, first.written),
    }


def eviction(world: World) -> Figures:
    """More conversations than a rank can hold, revisited at random: what is left of each is known."""
    chats = [Conversation(f"eviction/{number}", opening=400) for number in range(24)]
    order = [chat for chat in chats for _ in range(3)]
    random = Random("eviction")
    # Never a turn at the heels of the one before it: what a rank holds of an answer, it says after the answer.
    while any(chat is following for chat, following in pairwise(order)):
        random.shuffle(order)
    most = 0
    with world.evidence.watch([world.tiny]) as turns:
        for chat in order:
            turns.append(chat.turn(world.tiny_router.api))
            most = max(most, *world.tiny_router.blocks().values())
    lost = sum(chat.ceiling() - chat.cached() for chat in chats)
    partly = sum(0 < turn.cached < before.written for chat in chats for before, turn in pairwise(chat.turns))
    return {
        "evicted_tokens": Figure(lost, least=32 * world.block),
        "partly_cached_turns": Figure(partly),
        "blocks_believed_at_most": Figure(most, most=world.tiny.usable),
        "within_one_block_share": Figure(within_one_block(turns), least=0.99),
    }


def late_clear(world: World) -> Figures:
    """A rank that was told to forget says so with its next answer: one turn is predicted wrongly, no more."""
    router = world.tiny_router
    wrong = surprised = 0
    with world.evidence.watch([world.tiny]) as turns:
        for rank in range(RANKS):
            place = Place(world.tiny.worker, rank)
            chats = [Conversation(f"clear/{rank}/{number}") for number in range(3)]
            turns += [chat.turn(router.api, pinned(place), bound=False) for chat in chats]
            world.tiny.clear()
            late, *others = chats
            turn = late.turn(router.api, pinned(place), bound=False)
            surprised += turn.cached
            turns.append(unpredicted(turn))
            after = [chat.turn(router.api, pinned(place), bound=False) for chat in others]
            after.append(late.turn(router.api, pinned(place), bound=False))
            turns += after
            wrong += sum(turn.error != 0 for turn in after) + (after[-1].cached == 0)
    return {"cached_after_it": exactly(surprised, 0), "predicted_wrongly_later": exactly(wrong, 0)}


def clear(world: World) -> Figures:
    """A rank that was told to forget says so at once: nothing of it is predicted any more."""
    router = world.tiny_router
    places = [Place(world.tiny.worker, rank) for rank in range(RANKS)]
    chats = [(place, Conversation(f"clear/{place.rank}/{number}")) for place in places for number in range(3)]
    with world.evidence.watch([world.tiny]) as turns:
        turns += [chat.turn(router.api, pinned(place), bound=False) for place, chat in chats]
        held = sum(router.blocks().values())
        world.tiny.clear()
        until(lambda: not any(router.blocks().values()), "it is known that all is forgotten")
        after = [chat.turn(router.api, pinned(place), bound=False) for place, chat in chats]
        turns += after
    return {
        "blocks_before_it": Figure(held, least=1),
        "cached_after_it": exactly(sum(turn.cached for turn in after), 0),
        "predicted_after_it": exactly(sum(turn.overlap or 0 for turn in after), 0),
    }
