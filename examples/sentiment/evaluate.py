"""Prints how often the served network is right, on SemEval-2017's test set and on the airline tweets.

Macro recall, the contest's measure, is the mean over the three classes of the share of its posts that is found.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime

from posts import FEELINGS, Post, airline, semeval
from words import Words

HERE = Path(__file__).parent
Numbers = npt.NDArray[np.int64]


class Network:
    """The shipped file on one thread."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(HERE / "sentiment.onnx", options)
        self._words = Words.from_file(HERE / "vocabulary.txt")

    def feelings(self, texts: list[str], batch: int) -> Numbers:
        """The likeliest class of each text. Texts of like length go together, as in the server."""
        ids = [self._words.ids(text) for text in texts]
        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        found = np.zeros(len(ids), np.int64)
        for start in range(0, len(order), batch):
            places = order[start : start + batch]
            padded = np.zeros((len(places), len(ids[places[-1]])), np.int64)
            for row, place in zip(padded, places, strict=True):
                row[: len(ids[place])] = ids[place]
            found[places] = self._session.run(None, {"ids": padded})[0].argmax(axis=1)
        return found


def linear(train: list[Post], sets: list[list[Post]]) -> list[Numbers]:
    """What a linear model on words and characters says, the thing to beat: TF-IDF and logistic regression, balanced."""
    # Imported here: only this comparison needs scikit-learn.
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline, make_union
    except ModuleNotFoundError:
        raise SystemExit("--linear needs scikit-learn, which is not installed: pip install scikit-learn") from None

    features = make_union(
        TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), min_df=3, sublinear_tf=True, max_features=100_000),
    )
    model = make_pipeline(features, LogisticRegression(C=1.0, class_weight="balanced", max_iter=300))
    model.fit([post.text for post in train], [post.feeling for post in train])
    return [np.asarray(model.predict([post.text for post in posts])) for posts in sets]


def report(name: str, posts: list[Post], found: Numbers) -> None:
    """One line per class, one for all."""
    truth = np.array([post.feeling for post in posts])
    recalls = []
    for label, feeling in enumerate(FEELINGS):
        own, said = truth == label, found == label
        recalls.append(float((found[own] == label).mean()))
        precision = float((truth[said] == label).mean())
        print(f"  {feeling:8} {own.sum():6,} posts  recall {recalls[-1]:.1%}  precision {precision:.1%}")
    print(f"{name}: macro recall {np.mean(recalls):.1%}, accuracy {(found == truth).mean():.1%}")


def main() -> None:
    """Both sets, and the time of a lone post."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder with the tweets")
    parser.add_argument("--batch", type=int, default=16, help="posts that are read together")
    parser.add_argument("--linear", action="store_true", help="train and measure a linear model instead, to compare")
    options = parser.parse_args()
    names = ("SemEval-2017 test", "airline tweets")
    sets = [semeval(options.data, "test"), airline(options.data)]
    if options.linear:
        for name, posts, found in zip(names, sets, linear(semeval(options.data, "train"), sets), strict=True):
            report(f"linear model, {name}", posts, found)
        return
    network = Network()
    for name, posts in zip(names, sets, strict=True):
        report(name, posts, network.feelings([post.text for post in posts], options.batch))
    print(f"a lone post: {lone_post_s(network, sets[0]) * 1e3:.1f} ms at the median, words included, on one thread")
    print(f"sentiment.onnx: {(HERE / 'sentiment.onnx').stat().st_size:,} bytes")


def lone_post_s(network: Network, posts: list[Post]) -> float:
    """The median time of 500 posts, one after another."""
    times = []
    for post in posts[:: len(posts) // 500]:
        start = time.perf_counter()
        network.feelings([post.text], 1)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


if __name__ == "__main__":
    main()
