"""Draws what the store holds: the most active users with their feelings, and the feeling about a topic over time.

Times are counted in UTC; one without an offset is taken for UTC.
"""

from __future__ import annotations

import argparse
import collections
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import hiredis
import msgspec

from posts import FEELINGS
from timebound.errors import SetupError
from timebound.store.address import SCHEMES, read_address
from timebound.store.value import UnknownLayout, decode

COLOURS = {"negative": "#c8553d", "neutral": "#b8b8b0", "positive": "#3d7ea6"}
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
LONGEST = 60 * DAY
"""Results are kept so long. One post with a wrong date must not stretch the picture over two thousand years."""


class Kept(msgspec.Struct):
    """What the reports read of a kept answer."""

    feeling: Literal["negative", "neutral", "positive"]
    user: str | None
    time: str | None
    topics: list[str]


Answers = list[Kept]


class Redis:
    """Asks a Redis one thing at a time."""

    def __init__(self, url: str) -> None:
        if url.partition("://")[0] not in SCHEMES:
            raise SetupError("--store is no address of a Redis; give one such as redis://127.0.0.1:6379/0")
        address = read_address(url)
        if address.path is not None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(address.path)
        else:
            self._socket = socket.create_connection((address.host, address.port), timeout=10)
        if address.tls is not None:
            self._socket = address.tls.wrap_socket(self._socket, server_hostname=address.host)
        self._reader = hiredis.Reader()
        if address.password is not None:
            self.ask("AUTH", *([address.user] if address.user else []), address.password)
        self.ask("SELECT", str(address.database))

    def ask(self, *command: str | bytes) -> Any:
        """The reply to one command."""
        self._socket.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]
        while (reply := self._reader.gets()) is False:
            received = self._socket.recv(1 << 16)
            if not received:
                raise SystemExit("Redis closed the connection")
            self._reader.feed(received)
        if isinstance(reply, Exception):
            raise SystemExit(f"Redis refuses: {reply}")
        return reply


def kept_answers(redis: Redis, namespace: str) -> tuple[Answers, int]:
    """Every kept answer of the model, in no order, and how many others could not be read."""
    answers: Answers = []
    unreadable = 0
    cursor = b"0"
    while True:
        cursor, keys = redis.ask("SCAN", cursor, "MATCH", f"{namespace}:r:sentiment:*", "COUNT", "1000")
        for value in redis.ask("MGET", *keys) if keys else ():
            if value is None:
                continue  # its time was over between the two questions
            try:
                answers.append(msgspec.json.decode(decode(value).result.outcome.body, type=Kept))
            except (UnknownLayout, msgspec.DecodeError):
                unreadable += 1
        if cursor == b"0":
            return answers, unreadable


def active_users(answers: Answers, count: int) -> list[tuple[str, list[int]]]:
    """The users with most posts, and how many of each feeling."""
    feelings: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for answer in answers:
        if answer.user:
            feelings[answer.user][answer.feeling] += 1
    busiest = sorted(feelings.items(), key=lambda item: (-item[1].total(), item[0]))[:count]
    return [(user, [own[name] for name in FEELINGS]) for user, own in busiest]


def over_time(answers: Answers, topic: str, step: timedelta) -> list[tuple[datetime, list[int]]]:
    """How many posts of each feeling a topic got in each hour or day, from its first to its last."""
    counts: dict[datetime, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for answer in answers:
        when = _moment(answer.time, step)
        if when is not None and topic.lower() in answer.topics:
            counts[when][answer.feeling] += 1
    if not counts:
        return []
    first, last = _busiest(counts)
    steps = [first + number * step for number in range((last - first) // step + 1)]
    return [(when, [counts[when][name] for name in FEELINGS]) for when in steps]


def _busiest(counts: dict[datetime, collections.Counter[str]]) -> tuple[datetime, datetime]:
    """The first and last moment with posts; of the 60 days with most of them if they lie further apart."""
    moments = sorted(counts)
    posts = most = begin = 0
    span = (moments[0], moments[0])
    for moment in moments:
        posts += counts[moment].total()
        while moment - moments[begin] >= LONGEST:
            posts -= counts[moments[begin]].total()
            begin += 1
        if posts > most:
            most, span = posts, (moments[begin], moment)
    if left_out := sum(own.total() for own in counts.values()) - most:
        print(f"posts outside the {LONGEST.days} days that have most are left out: {left_out:,}")
    return span


def _moment(text: str | None, step: timedelta) -> datetime | None:
    """The hour or day a post was written in, in UTC; None if its time cannot be read."""
    try:
        when = datetime.fromisoformat(text or "")
        when = when.astimezone(UTC) if when.tzinfo else when
    except (ValueError, OverflowError):
        return None
    when = when.replace(tzinfo=None, minute=0, second=0, microsecond=0)
    return when if step < DAY else when.replace(hour=0)


def draw_users(rows: list[tuple[str, list[int]]], path: Path) -> None:
    """A bar per user, the busiest on top."""
    figure, axes = _figure(0.3 * len(rows) + 1.2)
    rows = rows[::-1]
    left = [0] * len(rows)
    for place, name in enumerate(FEELINGS):
        own = [counts[place] for _, counts in rows]
        axes.barh(range(len(rows)), own, left=left, color=COLOURS[name], label=name)
        left = [a + b for a, b in zip(left, own, strict=True)]
    axes.set_yticks(range(len(rows)), [_label(user) for user, _ in rows])
    axes.set_xlabel("posts")
    axes.set_title("The most active users and their feelings", loc="left")
    _save(figure, axes, path)


def draw_topic(rows: list[tuple[datetime, list[int]]], topic: str, by: timedelta, path: Path) -> None:
    """A column per hour or day: how many posts, and of which feeling."""
    figure, axes = _figure(4)
    bottom = [0] * len(rows)
    for place, name in enumerate(FEELINGS):
        own = [counts[place] for _, counts in rows]
        axes.bar(range(len(rows)), own, 0.9, bottom=bottom, color=COLOURS[name], label=name)
        bottom = [a + b for a, b in zip(bottom, own, strict=True)]
    step = max(1, len(rows) // 8)
    form = "%d %b" if by >= DAY else "%d %b\n%H:%M"
    axes.set_xticks(range(0, len(rows), step), [when.strftime(form) for when, _ in rows[::step]])
    axes.set_ylabel("posts")
    axes.set_title(f"Feeling about {_label(topic)} over time", loc="left")
    _save(figure, axes, path)


def _label(text: str) -> str:
    """A client's text on one line that leaves room for the picture."""
    text = " ".join(text.split())
    return text if len(text) <= 30 else text[:29] + "…"


def _figure(height: float) -> tuple[Any, Any]:
    # Imported here: reading the store back needs no matplotlib.
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit("matplotlib is not installed: pip install -r examples/sentiment/requirements.txt") from None

    rcParams["text.parse_math"] = False  # a user may be called $x_1$, or have a lone $ in the name
    figure = Figure(figsize=(8, height), layout="constrained")
    return figure, figure.subplots()


def _save(figure: Any, axes: Any, path: Path) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=len(FEELINGS), loc="lower right", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=110)
    print(path)


def read(store: str, namespace: str) -> Answers:
    """The kept answers; says how many there are."""
    try:
        answers, unreadable = kept_answers(Redis(store), namespace)
    except SetupError as error:
        raise SystemExit(str(error)) from None
    except (OSError, hiredis.HiredisError) as error:
        where = read_address(store).shown  # without the password
        raise SystemExit(f"no Redis answers at {where}: {error}; start it, or name another with --store") from None
    print(f"{len(answers):,} results are kept")
    if unreadable:
        print(f"results that cannot be read as answers of this model are left out: {unreadable:,}")
    return answers


def main() -> None:
    """Read, count, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--store", default="redis://127.0.0.1:6379/0", help="the Redis the server writes to (default: %(default)s)"
    )
    parser.add_argument("--namespace", default="timebound", help="the server's --store-namespace")
    parser.add_argument("--topic", help="what the second picture is about; the most frequent topic unless given")
    parser.add_argument("--users", type=int, default=15, help="users in the first picture")
    parser.add_argument("--by", choices=("hour", "day"), default="hour", help="a column of it (default: hour)")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for users.png and topic.png")
    options = parser.parse_args()
    if options.users < 1:
        parser.error(f"--users {options.users}: the first picture needs one user at least")
    answers = read(options.store, options.namespace)
    if not answers:
        raise SystemExit("nothing to draw; send posts with an id to a server with this store, for example with feed.py")
    topics = collections.Counter(topic for answer in answers for topic in answer.topics)
    topic = options.topic or (topics.most_common(1)[0][0] if topics else "")
    by = HOUR if options.by == "hour" else DAY
    users, times = active_users(answers, options.users), over_time(answers, topic, by)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"no pictures can be written to {options.out}: {error}; name a folder with --out") from None
    if users:
        draw_users(users, options.out / "users.png")
    if not times:
        raise SystemExit(
            f"no kept post with a time is about {topic!r}; topics there are: {', '.join(list(topics)[:10])}"
        )
    draw_topic(times, topic, by, options.out / "topic.png")


if __name__ == "__main__":
    main()
