import numpy as np
import pytest

from sim.language import LEADS, UNSEEN_LEADS, expanded, instructions_of, spoken
from sim.language.metaworld import PHRASES
from sim.language.relations import COLOURS, SAID_AS, instructions, things


@pytest.mark.parametrize("name", PHRASES)
def test_a_task_has_many_sentences_and_unseen_ones(name):
    told = instructions_of(name)
    assert 50 <= len(told.learned) <= 200 and len(told.held_out) >= 6
    assert len({*told.learned, *told.held_out}) == len(told.learned) + len(told.held_out)
    for sentence in (*told.learned, *told.held_out):
        assert sentence == " ".join(sentence.split()) and sentence == sentence.lower()
        assert not {*"()|"} & {*sentence}


@pytest.mark.parametrize("name", PHRASES)
def test_unseen_sentences_are_worded_differently(name):
    def bare(sentences, leads):
        return {s.removeprefix(lead) for s in sentences for lead in leads if lead and s.startswith(lead)}

    told = instructions_of(name)
    assert not bare(told.learned, LEADS) & bare(told.held_out, UNSEEN_LEADS)


def test_no_sentence_asks_for_two_tasks():
    owners: dict[str, str] = {}
    for told in spoken().values():
        for sentence in (*told.learned, *told.held_out):
            assert owners.setdefault(sentence, told.task) == told.task, sentence


def test_opposites_are_mutual():
    pairs = {told.task: told.opposite for told in spoken().values() if told.opposite}
    assert len(pairs) == 8 and all(pairs[opposite] == name for name, opposite in pairs.items())


def test_all_of_mt10_and_only_tasks_that_exist():
    metaworld = pytest.importorskip("metaworld")
    ours = {name.removeprefix("metaworld/") for name in PHRASES}
    assert {*metaworld.env_dict.MT10_V3} <= ours <= {*metaworld.env_dict.ALL_V3_ENVIRONMENTS}


def test_patterns_expand_in_order_and_once():
    assert expanded(("(a|b) c(| d)", "a c", "e")) == ("a c", "a c d", "b c", "b c d", "e")


def test_drawing_follows_the_generator():
    told = instructions_of("metaworld/drawer-open-v3")
    drawn = [told.draw(np.random.default_rng(3)) for _ in range(2)]
    assert drawn[0] == drawn[1] and drawn[0] in told.learned
    rng = np.random.default_rng(0)
    assert {told.draw(rng, held_out=True) for _ in range(200)} == {*told.held_out}


def test_a_task_without_words_is_named():
    with pytest.raises(ValueError, match="task quad_hover has no instructions in words; these have: metaworld/reach"):
        instructions_of("quad_hover")


@pytest.mark.parametrize("thing", things(COLOURS), ids=" ".join)
def test_a_place_of_a_cube_has_many_sentences_and_unseen_ones(thing):
    told = instructions(thing)
    assert 50 <= len(told.learned) <= 200 and len(told.held_out) >= 6
    bare = [
        {s.removeprefix(lead) for s in told.learned for lead in ("please ", "now ", "go ahead and ", "you should ")}
    ]
    bare += [{s.removeprefix(lead) for s in told.held_out for lead in ("could you ", "i would like you to ")}]
    assert not bare[0] & bare[1]
    learned, held_out = ({*expanded((said,))} for said in SAID_AS[thing.relation])
    assert not any(where in sentence for where in held_out for sentence in told.learned)
    assert not any(f" {where} " in sentence for where in learned for sentence in told.held_out)
    for sentence in (*told.learned, *told.held_out):
        assert sentence == " ".join(sentence.split()) and sentence == sentence.lower()
        assert not {*"()|{}"} & {*sentence} and sentence.index(thing.moved) < sentence.index(thing.reference)


def test_things_differ_in_which_of_their_sentences_learning_sees():
    one, other = (instructions(thing).learned for thing in things(COLOURS)[:2])  # red left of green, of blue
    swapped = {sentence.replace("green", "blue") for sentence in one}
    assert 0 < len(swapped & {*other}) < len(other)


def test_no_sentence_asks_for_two_places():
    owners: dict[str, str] = {}
    for told in map(instructions, things(COLOURS)):
        for sentence in (*told.learned, *told.held_out):
            assert owners.setdefault(sentence, told.task) == told.task, sentence


@pytest.mark.parametrize("count", [2, 3, 4])
def test_unseen_combinations_are_of_colours_and_relations_that_are_seen_apart(count):
    asked = things(COLOURS[:count])
    unseen, seen = ([t for t in asked if t.unseen == held_out] for held_out in (True, False))
    assert len(asked) == 4 * count * (count - 1) and len(unseen) == len(asked) // 4
    assert not {(t.moved, t.relation) for t in unseen} & {(t.moved, t.relation) for t in seen}
    assert {t.moved for t in seen} == {t.reference for t in seen} == {*COLOURS[:count]}
    assert {t.relation for t in seen} == {*SAID_AS}
    assert all(t.converse in asked and t.converse.converse == t for t in asked)


def test_the_opposite_place_undoes_it():
    names = {" ".join(thing): thing for thing in things(COLOURS)}
    for name, thing in names.items():
        other = names[instructions(thing).opposite]
        assert other.relation != thing.relation and instructions(other).opposite == name
