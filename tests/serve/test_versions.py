"""Newer, pinned, older and damaged versions of a policy."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from processes import SECONDS
from served_graphs import cart_pole, make_endpoint, question, run, save_constant, serving

from steppe.errors import UserError
from steppe.serve import NotFound
from steppe.serve.versions import KEPT, Versions
from steppe.specs.spaces import Discrete


def action(endpoint, **fields):
    return int(endpoint.answer(question(**fields)).actions[0])


def test_a_newer_policy_is_taken_into_service(tmp_path):
    async def check():
        save_constant(tmp_path / "p", 1, timestep=100)
        async with serving(tmp_path, "p") as endpoint:
            assert await endpoint.reload() == []
            old = endpoint.answer(question())
            save_constant(tmp_path / "p", 2, timestep=200)
            (sentence,) = await endpoint.reload()
            new = endpoint.answer(question())
            assert (old.actions[0], new.actions[0]) == (1, 2)
            assert old.version.startswith("100-")
            assert new.version.startswith("200-")
            assert sentence == f'policy "p" is now served at version {new.version}'
            assert endpoint.metadata("p").versions == (old.version, new.version)
            assert action(endpoint, version=old.version) == 1
            with pytest.raises(NotFound, match='policy "p" has no version "300"; there are 100-'):
                endpoint.answer(question(version="300"))

    run(check())


def test_an_open_episode_keeps_the_version_it_began_with(tmp_path):
    async def check():
        save_constant(tmp_path / "p", 1)
        async with serving(tmp_path, "p") as endpoint:
            assert action(endpoint, sequence_id="e") == 1
            save_constant(tmp_path / "p", 2)
            await endpoint.reload()
            assert action(endpoint, sequence_id="e", sequence_end=True) == 1
            assert action(endpoint, sequence_id="e") == 2

    run(check())


def test_a_version_can_be_pinned_and_unpinned_and_the_pin_survives_a_restart(tmp_path):
    async def check():
        save_constant(tmp_path / "p", 1)
        async with serving(tmp_path, "p") as endpoint:
            first = endpoint.standing().policies[0].version
            save_constant(tmp_path / "p", 2)
            await endpoint.reload()
            await endpoint.pin("p", first)
            assert action(endpoint) == 1
            assert endpoint.standing().policies[0].pinned
            save_constant(tmp_path / "p", 3)
            (sentence,) = await endpoint.reload()
            assert f"but version {first} is pinned" in sentence
            assert action(endpoint) == 1
        async with serving(tmp_path, "p") as endpoint:
            assert action(endpoint) == 1
            assert len(endpoint.standing().policies[0].versions) == 3
            await endpoint.pin("p", None)
            assert action(endpoint) == 3
            with pytest.raises(NotFound):
                await endpoint.pin("p", "other")
            assert action(endpoint) == 3
        async with serving(tmp_path, {"policy": "p", "version": first}) as endpoint:
            assert action(endpoint) == 1
        with pytest.raises(NotFound, match='no version "gone"'):
            make_endpoint(tmp_path, {"policy": "p", "version": "gone"})

    run(check())


def test_a_truncated_policy_file_leaves_the_old_version_in_service_and_says_so(tmp_path):
    async def check():
        save_constant(tmp_path / "p", 1)
        file = tmp_path / "p" / "policy.safetensors"
        async with serving(tmp_path, "p") as endpoint:
            whole = file.read_bytes()
            file.write_bytes(whole[: len(whole) // 2])
            (sentence,) = await endpoint.reload()
            version = endpoint.standing().policies[0].version
            assert f'policy "p" stays at version {version}' in sentence
            assert "is damaged" in sentence
            assert endpoint.standing().policies[0].problem == sentence
            assert await endpoint.reload() == []
            assert action(endpoint) == 1
            file.unlink()
            (sentence,) = await endpoint.reload()
            assert "stays at version" in sentence
            save_constant(tmp_path / "p", 2)
            await endpoint.reload()
            assert endpoint.standing().policies[0].problem is None
            assert action(endpoint) == 2

    run(check())


def test_a_start_with_a_truncated_file_serves_the_last_good_version(tmp_path):
    async def check():
        save_constant(tmp_path / "p", 1)
        make_endpoint(tmp_path, "p")
        file = tmp_path / "p" / "policy.safetensors"
        file.write_bytes(file.read_bytes()[:-3])
        async with serving(tmp_path, "p") as endpoint:
            assert action(endpoint) == 1
            assert "is damaged" in endpoint.standing().policies[0].problem
        with pytest.raises(UserError, match="is damaged"):
            make_endpoint(tmp_path, "p", folder=tmp_path / "nothing kept")

    run(check())


def test_a_newer_policy_of_another_environment_is_refused(tmp_path):
    async def check():
        save_constant(tmp_path / "p", 1)
        async with serving(tmp_path, "p") as endpoint:
            save_constant(tmp_path / "p", 2, space=Discrete(99))
            (sentence,) = await endpoint.reload()
            assert "has other actions" in sentence
            assert action(endpoint) == 1

    run(check())


def test_a_newer_policy_from_another_program_is_taken_into_service_if_it_fits(tmp_path):
    async def check():
        save_constant(tmp_path / "p", 0, observation=cart_pole("compiled"), space=Discrete(2))
        async with serving(tmp_path, "p") as endpoint:
            save_constant(tmp_path / "p", 1, observation=cart_pole("gymnasium"), space=Discrete(2))
            (sentence,) = await endpoint.reload()
            assert "is now served at version" in sentence
            assert action(endpoint) == 1

    run(check())


def test_an_untrained_policy_of_a_restarted_run_is_not_served(tmp_path):
    async def check():
        save_constant(tmp_path / "p", 1, timestep=50)
        async with serving(tmp_path, "p") as endpoint:
            shutil.rmtree(tmp_path / "p")
            (sentence,) = await endpoint.reload()
            assert sentence.startswith('policy "p" stays at version 50-')
            assert sentence.endswith("policy.safetensors: no such file or directory")
            save_constant(tmp_path / "p", 2, timestep=0)
            (sentence,) = await endpoint.reload()
            assert "has not been trained yet" in sentence
            assert (action(endpoint), len(endpoint.standing().policies[0].versions)) == (1, 1)
            save_constant(tmp_path / "p", 3, timestep=10)
            (sentence,) = await endpoint.reload()
            assert "is now served at version 10-" in sentence
            assert (action(endpoint), endpoint.standing().policies[0].problem) == (3, None)

    run(check())


def test_old_versions_are_deleted_but_never_the_one_in_service(tmp_path):
    save_constant(tmp_path / "p", 0)
    versions = Versions("p", tmp_path / "p", tmp_path / "kept")
    first = versions.current.name
    versions.pin(first)
    for number in range(1, 9):
        save_constant(tmp_path / "p", number)
        versions.refresh()
    versions.pin(None)
    save_constant(tmp_path / "p", 9)
    versions.refresh()
    assert len(versions.names) == KEPT
    assert versions.current.name == versions.names[-1]
    folders = {path.name for path in (tmp_path / "kept").iterdir() if path.is_dir()}
    assert folders == set(versions.names)


def test_a_damaged_copy_is_ignored(tmp_path):
    save_constant(tmp_path / "p", 1)
    name = Versions("p", tmp_path / "p", tmp_path / "kept").current.name
    save_constant(tmp_path / "p", 2)
    Versions("p", tmp_path / "p", tmp_path / "kept")
    (tmp_path / "kept" / name / "policy.safetensors").write_bytes(b"")
    shutil.rmtree(tmp_path / "kept" / "nothing", ignore_errors=True)
    assert name not in Versions("p", tmp_path / "p", tmp_path / "kept").names


def test_no_question_fails_while_versions_come_go_and_are_pinned(tmp_path):
    async def check():
        save_constant(tmp_path / "p", 0)
        graph = {"kind": "abtest", "branches": ["p", {"policy": "p", "name": "q"}]}
        async with serving(tmp_path, graph, limits={"watch_seconds": 0.005}) as endpoint:
            seen, counts, is_over = set(), [0] * 4, False

            async def ask(number):
                while not is_over:
                    sequence = f"{number}-{counts[number] // 10}"
                    answers = endpoint.answers([question(sequence_id=sequence), question(), question(model="q")])
                    for answer in answers:
                        assert not isinstance(answer, Exception)
                        seen.add(int(answer.actions[0]))
                    assert endpoint.answer(question(sequence_id=sequence)).actions[0] == answers[0].actions[0]
                    counts[number] += 1
                    await asyncio.sleep(0)

            async def until(holds):
                async with asyncio.timeout(SECONDS):
                    while not holds():
                        await asyncio.sleep(0.005)

            asking = [asyncio.create_task(ask(number)) for number in range(4)]
            for number in range(1, 10):
                await asyncio.to_thread(save_constant, tmp_path / "p", number)
                await until(lambda number=number: number in seen)
                if number % 3 == 0:
                    await endpoint.pin("q", endpoint.metadata("q").versions[-2])
                    await endpoint.pin("q", None)
            await until(lambda: min(counts) > 50)
            is_over = True
            await asyncio.gather(*asking)
            assert seen == set(range(10))

    run(check())


@pytest.mark.parametrize("raised", [SystemExit(2), KeyboardInterrupt(), RuntimeError("odd")])
def test_any_error_of_a_newer_policy_leaves_the_endpoint_running(tmp_path, monkeypatch, raised):
    def load(*_, **__):
        raise raised

    async def check():
        save_constant(tmp_path / "p", 1, timestep=100)
        async with serving(tmp_path, "p") as endpoint:
            with monkeypatch.context() as patched:
                patched.setattr("steppe.serve.versions.load_policy", load)
                save_constant(tmp_path / "p", 2, timestep=200)
                (sentence,) = await endpoint.reload()
            assert type(raised).__name__ in sentence
            assert action(endpoint) == 1
            save_constant(tmp_path / "p", 3, timestep=300)
            await endpoint.reload()
            assert action(endpoint) == 3

    run(check())
