"""Who publishes a topic, by name, and whose messages cannot arrive: what a diagnostic has to say about it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSCompatibility, qos_check_compatible

from deploy.ros2.node.subscriptions import CONTEST, Inbox, Letterbox
from deploy.ros2.topics import Source, type_name
from deploy.trust.text import printable
from sim.spec import Group

SAME_PARTICIPANT = 12  # bytes of a gid: the GUID prefix of RTPS, 8.2.4.1; what follows counts its publishers
SLOWEST = 0.8  # of a policy's rate: what comes less often cannot feed it
ROBOTS = ("nav_msgs", "sensor_msgs", "geometry_msgs", "std_msgs/msg/Float32MultiArray")


def same_process(one: bytes, other: bytes) -> bool:
    """Whether two publishers belong to one participant, as all publishers of a node do, on a DDS middleware."""
    return len(one) >= SAME_PARTICIPANT and one[:SAME_PARTICIPANT] == other[:SAME_PARTICIPANT]


def _name(info: Any) -> str:
    return printable(f"{info.node_namespace.rstrip('/')}/{info.node_name}", 80)


def named(node: Node, topic: str, gid: bytes) -> str:
    """The node that this publisher belongs to, or what is known of one that is gone or hides."""
    for info in node.get_publishers_info_by_topic(topic):
        if bytes(info.endpoint_gid) == gid:
            return _name(info)
    return f"an unknown node ({gid[:SAME_PARTICIPANT].hex() or 'without a name'})"


def gids(node: Node, topic: str) -> set[bytes]:
    """Of all publishers of a topic that are known now."""
    return {bytes(info.endpoint_gid) for info in node.get_publishers_info_by_topic(node.resolve_topic_name(topic))}


def publishers(node: Node, topic: str) -> list[str]:
    """The nodes that publish a topic, by name, also one that was killed less than 20 s ago."""
    return [_name(info) for info in node.get_publishers_info_by_topic(node.resolve_topic_name(topic))]


def several(node: Node, topics: Iterable[str]) -> list[str]:
    """Topics with more than one publisher, and who they are."""
    found = [(topic, publishers(node, topic)) for topic in topics]
    return [f"{topic} has several publishers: {', '.join(names)}" for topic, names in found if len(names) > 1]


def present(node: Node, known: set[str]) -> str:
    """The topics of the kinds that robots publish, but for those that are known."""
    topics = [n for n, kinds in node.get_topic_names_and_types() if kinds[0].startswith(ROBOTS) and n not in known]
    return ", ".join(n for n in topics if node.count_publishers(n)) or "nothing"


def trouble(
    node: Node, source: Source, inbox: Inbox, unread: str, age: float, rate_hz: float, known: set[str], needed: Group
) -> str:
    """What keeps a topic from feeding a policy at `rate_hz`; empty where nothing does.

    `age` of its newest message in s, `unread` why its values were not found, `known` the topics that are no choice,
    `needed` what the policy reads.
    """
    wanted = {s.name for s in needed}
    kind, names = type_name(source.message), ", ".join(s.name for s in source.signals if s.name in wanted)
    if inbox.message is None:
        others = [info.topic_type for info in node.get_publishers_info_by_topic(inbox.topic)]
        if not others:
            return f"nothing publishes {inbox.topic} ({kind}), which gives {names}; there is: {present(node, known)}"
        if kind not in others:
            return f"{inbox.topic} is a {others[0]}, not a {kind}"
        return f"{inbox.topic} is published, but nothing arrives: is its reliability compatible?"
    if unread:
        return f"{inbox.topic} {unread}"
    oldest = source.signals[0].max_age
    if not abs(age) <= oldest:
        return f"{inbox.topic} is {age:.2f} s old, more than {oldest:g} s: it has stopped, or clocks differ"
    if source.paces and math.isnan(inbox.rate):
        return f"the rate of {inbox.topic} is not known yet"
    if source.paces and inbox.rate < SLOWEST * rate_hz:
        return f"{inbox.topic} comes at {inbox.rate:.0f} Hz, the policy runs at {rate_hz:g} Hz"
    return ""


def contest(node: Node, box: Inbox, now: float, within: float = CONTEST) -> str:
    """A sentence that names those who publish a topic beside its owner; empty where nobody has lately."""
    rivals = box.owner.rivals(now, within)
    if not rivals:
        return ""
    owner, *others = (named(node, box.topic, gid) for gid in (box.owner.gid, *rivals[:3]))
    return f"two publishers on {box.topic}: {owner} and {', '.join(others)}"


def unfit(node: Node, boxes: Iterable[Letterbox]) -> list[str]:
    """Publishers whose messages do not reach us, with topic, name and what does not fit: type, or policy of quality."""
    found = []
    for box in boxes:
        kind, ours = type_name(box.kind), box.subscription.qos_profile
        for info in node.get_publishers_info_by_topic(box.topic):
            if info.topic_type != kind:
                found.append(f"{box.topic} of {_name(info)} is a {printable(info.topic_type, 80)}, not a {kind}")
                continue
            fits, why = qos_check_compatible(info.qos_profile, ours)
            if fits == QoSCompatibility.ERROR:
                found.append(f"{box.topic} of {_name(info)} cannot be heard: {_policies(why)}")
    return list(dict.fromkeys(found))


def _policies(why: str) -> str:
    """The incompatible ones among what the check says."""
    parts = (part.strip() for part in why.split(";"))
    return "; ".join(part.removeprefix("ERROR: ") for part in parts if part.startswith("ERROR"))
