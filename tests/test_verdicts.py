"""Every fixture's rewrite is judged by running it, and its verdict is one that its rules promise."""

import pytest

torch = pytest.importorskip("torch")

from fixture_support import FIXTURES, fixture_id, repaired  # noqa: E402
from harness_support import Verdict, prove, rewritten, runs, script  # noqa: E402

from gradfix.codemod import load  # noqa: E402
from gradfix.harness.judge import Prover  # noqa: E402
from gradfix.harness.run import Limits  # noqa: E402

LOOKALIKES = [p for p in FIXTURES if p.stem.startswith("ok_")]
MISTAKES = [p for p in FIXTURES if not p.stem.startswith("ok_")]
PROMISES = {rule.code: rule.promises for rule in load()}
# Nothing can be said of a script that needs a package or a device that is not here, or that calls nothing.
NOT_HERE = ("the original does not run: ModuleNotFoundError", "Torch not compiled with CUDA enabled", "No CUDA GPUs")
NOT_RUN = "the rewritten lines did not run"


def judged(path):
    done = rewritten(path)
    return (done, prove(path, done)) if done.after else (done, None)


@pytest.mark.parametrize("path", MISTAKES, ids=map(fixture_id, MISTAKES))
def test_the_promised_verdict(path):
    done, judgement = judged(path)
    if judgement is None:
        assert not repaired(path)[1].fixed
        return
    if any(reason in judgement.reason for reason in NOT_HERE):
        pytest.skip(judgement.reason)
    if judgement.reason == NOT_RUN:
        assert "__main__" not in path.read_text() and judgement.before.error is None
        return
    promised = {verdict for rewrite in done.rewrites for verdict in rewrite.promises}
    assert judgement.verdict in promised, (judgement.reason, judgement.notes)


@pytest.mark.parametrize("path", LOOKALIKES, ids=map(fixture_id, LOOKALIKES))
def test_look_alikes_run_and_print_the_same_under_the_recorder(path):
    plain, watched = (runs().start(script(path), mode=mode) for mode in ("plain", "record"))
    plain, watched = runs().result(plain), runs().result(watched)
    if plain.error is not None and plain.error.type == "ModuleNotFoundError":
        pytest.skip(plain.error.message)
    if plain.error is not None and any(reason in plain.error.message for reason in NOT_HERE):
        pytest.skip(plain.error.message)
    assert plain.error is None and watched.error is None
    assert plain.stdout == watched.stdout


ON_GPU = MISTAKES if torch.cuda.is_available() else []


@pytest.mark.gpu
@pytest.mark.parametrize("path", ON_GPU, ids=map(fixture_id, ON_GPU))
def test_the_promised_verdict_on_a_gpu(path):
    done = rewritten(path)
    if not done.after:
        return
    judgement = Prover(runs(), script(path, Limits(timeout=60, device="cuda"))).prove(done.before, done.after, done.rewrites)
    if judgement.verdict is Verdict.INCONCLUSIVE:
        pytest.skip(judgement.reason)
    assert judgement.verdict in {verdict for rewrite in done.rewrites for verdict in rewrite.promises}, judgement.reason
