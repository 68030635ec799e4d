import os
import sys

import pytest

from steppe.errors import SpecError
from steppe.specs.loading.files import find_config, find_project, read_spec_file


def sentence_of(function, *arguments):
    with pytest.raises(SpecError) as error:
        function(*arguments)
    return str(error.value)


def test_a_project_is_the_nearest_folder_upward_with_its_file(project, tmp_path_factory):
    below = project.root / "configs" / "agents"
    below.mkdir(parents=True)
    assert find_project(below) == project.root
    assert find_project(project.root) == project.root
    assert find_project(tmp_path_factory.mktemp("elsewhere")) is None


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml", ".toml"])
def test_a_bare_name_is_found_among_the_configs_from_any_folder_below(project, suffix):
    file = project.write(f"configs/networks/nature{suffix}", "")
    below = project.root / "experiments" / "a"
    below.mkdir(parents=True)
    assert find_config("nature", "network", below) == file
    assert find_config(f"nature{suffix}", "network", below) == file


def test_an_exact_path_comes_before_a_config(project):
    project.write("configs/networks/nature.json", [])
    here = project.write("nature.json", [])
    assert find_config("nature", "network", project.root) == here
    assert find_config("nature.json", "network", project.root) == here
    assert find_config(str(here), "network", project.root / "configs") == here


def test_a_path_may_start_at_the_project(project):
    file = project.write("configs/networks/nature.json", [])
    assert find_config("configs/networks/nature", "network", project.root / "configs") == file


def test_a_name_with_a_dot_in_it_keeps_the_dot(project):
    file = project.write("configs/agents/ppo-1.5.json", {})
    assert find_config("ppo-1.5", "agent", project.root) == file


def test_a_missing_name_says_where_it_was_looked_for_and_what_is_nearest(project):
    project.write("configs/experiments/cartpole.json", {})
    assert sentence_of(find_config, "cartpol", "experiment", project.root) == (
        'no experiment "cartpol": looked for cartpol.json (or .yaml, .yml, .toml) in . and configs/experiments; '
        'did you mean "cartpole"?'
    )


def test_a_missing_path_says_so_too(project):
    project.write("configs/experiments/cartpole.json", {})
    assert sentence_of(find_config, "configs/experiments/cartpool.json", "experiment", project.root) == (
        'no experiment "configs/experiments/cartpool.json": looked for cartpool.json in configs/experiments and '
        'configs/experiments/configs/experiments; did you mean "cartpole.json"?'
    )


def test_outside_a_project_only_the_folder_is_looked_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence_of(find_config, "x", "agent", tmp_path) == (
        'no agent "x": looked for x.json (or .yaml, .yml, .toml) in .'
    )


@pytest.mark.parametrize("name", ["", "..", ".", "x" * 5000, "\0", "a/"])
def test_a_strange_name_is_simply_not_found(project, name):
    assert sentence_of(find_config, name, "agent", project.root).startswith(f'no agent "{name}": looked for ')


def test_a_file_with_another_ending_is_no_spec_file(project):
    project.write("notes.txt", "{}")
    assert sentence_of(find_config, "notes.txt", "agent", project.root) == (
        "notes.txt is no spec file; its name must end in .json, .yaml, .yml or .toml"
    )


def test_the_three_languages_say_the_same(project):
    expected = {"agent": {"type": "ppo", "rate": 1e-3, "steps": 1e6}, "name": "a", "day": "2024-01-01", "on": True}
    json_file = project.write("a.json", {"$schema": "x"} | expected)
    yaml_file = project.write(
        "a.yaml", "agent: {type: ppo, rate: 1e-3, steps: 1e6}\nname: a\nday: 2024-01-01\n'on': true\n"
    )
    toml_file = project.write(
        "a.toml", 'name = "a"\nday = "2024-01-01"\non = true\n[agent]\ntype = "ppo"\nrate = 1e-3\nsteps = 1e6\n'
    )
    assert read_spec_file(json_file) == read_spec_file(yaml_file) == read_spec_file(toml_file) == expected


def test_a_byte_order_mark_is_no_part_of_the_file(project):
    assert read_spec_file(project.write("a.json", '\ufeff{"a": 1}')) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '{\n  "name": "a"\n  "episodes": 5\n}',
            'broken JSON in a.json at line 3, column 3: a comma is missing before this: "episodes": 5',
        ),
        ('{"a" 1}', 'broken JSON in a.json at line 1, column 6: a colon is missing before this: {"a" 1}'),
        ('{"a": }', 'broken JSON in a.json at line 1, column 7: a value is missing here: {"a": }'),
        ("{a: 1}", "broken JSON in a.json at line 1, column 2: a field name in double quotes is missing here: {a: 1}"),
        ("{'a': 1}", "broken JSON in a.json at line 1, column 2: text takes double quotes: {'a': 1}"),
        ('{"a": True}', 'broken JSON in a.json at line 1, column 7: True is written true: {"a": True}'),
        ('{"a": 1\n// why\n}', "broken JSON in a.json at line 2, column 1: JSON has no comments: // why"),
        ('{"a": "b}', 'broken JSON in a.json at line 1, column 7: this text has no closing quote: {"a": "b}'),
        ('{"a": 1} x', 'broken JSON in a.json at line 1, column 10: something follows the end: {"a": 1} x'),
        ('{"a": 1', 'broken JSON in a.json at line 1, column 8: the file ends too early: {"a": 1'),
        ("", "broken JSON in a.json at line 1, column 1: the file ends too early"),
        ('{"a": 1, "a": 2}', 'field "a" is written twice in a.json; keep one of the two'),
        ('{"a": [NaN]}', "wrong value nan in a.json at a[0]; it must be a finite number"),
        ('{"a": 1e999}', "wrong value inf in a.json at a; it must be a finite number"),
        (f'{{"a": {"1" * 5000}}}', "broken JSON in a.json: a number in it has too many digits"),
        ("[" * 100_000, "a.json is nested too deeply to be read"),
    ],
)
def test_broken_json_is_named_by_line_and_column(project, text, sentence):
    assert sentence_of(read_spec_file, project.write("a.json", text)) == sentence


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="newer Pythons point at the comma itself")
def test_a_comma_too_many_is_named(project):
    file = project.write("a.json", '{\n "a": 1,\n}')
    assert (
        sentence_of(read_spec_file, file) == "broken JSON in a.json at line 3, column 1: there is a comma too many: }"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "name: a\n  episodes: 5\n",
            "broken YAML in a.yaml at line 2, column 11: mapping values are not allowed here: episodes: 5",
        ),
        ("a: 1\nb: 2\na: 3\n", 'broken YAML in a.yaml at line 3, column 1: field "a" is written twice: a: 3'),
        ("1: a\n", "wrong field name 1 in a.yaml; write it in quotes"),
        ("a: .inf\n", "wrong value inf in a.yaml at a; it must be a finite number"),
        ("a: &a [*a]\n", "a.yaml has an alias that stands for itself; write out what it means"),
        (
            "a: !!python/object/apply:os.getcwd []\n",
            "broken YAML in a.yaml at line 1, column 4: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/object/apply:os.getcwd': a: !!python/object/apply:os.getcwd []",
        ),
    ],
)
def test_broken_yaml_is_named_by_line_and_column(project, text, sentence):
    assert sentence_of(read_spec_file, project.write("a.yaml", text)) == sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            'name = "a"\nepisodes 5\n',
            "broken TOML in a.toml at line 2, column 10: expected '=' after a key in a key/value pair: episodes 5",
        ),
        ("a = 1\na = 2\n", "broken TOML in a.toml at line 2, column 6: cannot overwrite a value: a = 2"),
        ("a = [1,", "broken TOML in a.toml at line 1, column 8: invalid value: a = [1,"),
        ("a = 2024-01-01\n", "wrong value 2024-01-01 in a.toml at a; write it in quotes"),
    ],
)
def test_broken_toml_is_named_by_line_and_column(project, text, sentence):
    assert sentence_of(read_spec_file, project.write("a.toml", text)) == sentence


def test_a_file_that_cannot_be_read_is_named(project):
    assert sentence_of(read_spec_file, project.root / "gone.json") == "cannot read gone.json: no such file or directory"
    (project.root / "folder.json").mkdir()
    assert sentence_of(read_spec_file, project.root / "folder.json") == "cannot read folder.json: is a directory"
    (project.root / "latin.json").write_bytes(b'{"a": "\xe9"}')
    assert sentence_of(read_spec_file, project.root / "latin.json") == (
        "latin.json is not text in UTF-8; save it as UTF-8"
    )


def test_a_file_outside_the_current_folder_is_named_in_full(project, tmp_path_factory):
    file = tmp_path_factory.mktemp("other") / "a.json"
    file.write_text("{")
    assert sentence_of(read_spec_file, file) == (
        f"broken JSON in {file} at line 1, column 2: the file ends too early: {{"
    )


def bomb(levels, *, leaf="x", merges=False):
    """YAML whose aliases stand for 10**levels values."""
    lines = [f"a0: &a0 {{x: {leaf}}}"]
    for level in range(1, levels + 1):
        inner = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(
            f"a{level}: &a{level} {{<<: [{inner}], k{level}: 1}}" if merges else f"a{level}: &a{level} [{inner}]"
        )
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("text", [bomb(9), bomb(9, merges=True), bomb(60)])
def test_aliases_that_stand_for_very_many_values_are_refused(project, text):
    assert sentence_of(read_spec_file, project.write("a.yaml", text)) == (
        "a.yaml has aliases that stand for more than 100,000 values; write fewer of them"
    )


def test_ordinary_aliases_and_merge_keys_are_written_out(project):
    text = "base: &base {size: 8, type: dense}\nnetwork: [*base, {<<: *base, size: 16}]\nagain: *base\n"
    assert read_spec_file(project.write("a.yaml", text)) == {
        "base": {"size": 8, "type": "dense"},
        "network": [{"size": 8, "type": "dense"}, {"size": 16, "type": "dense"}],
        "again": {"size": 8, "type": "dense"},
    }
    assert len(read_spec_file(project.write("b.yaml", bomb(3)))["a3"]) == 10


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "[" * 102 + "]" * 102),
        ("a.json", '{"a":' * 5000 + "1" + "}" * 5000),
        ("a.yaml", "[" * 102 + "]" * 102),
        ("a.yaml", "- " * 5000 + "a"),
        ("a.yaml", "\n".join(["a0: &a0 [1]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 120))])),
        ("a.toml", "a = " + "[" * 102 + "]" * 102),
        ("a.toml", "a = " + "[" * 5000 + "]" * 5000),
        ("a.toml", "a." * 200_000 + "a = 1"),
        ("a.toml", '"a" . ' * 100_000 + "a = 1"),
        ("a.toml", f"[{'a.' * 200_000}a]"),
    ],
)
def test_deep_nesting_is_refused_in_every_language(project, name, text):
    assert sentence_of(read_spec_file, project.write(name, text)) == f"{name} is nested too deeply to be read"


def test_long_toml_lists_of_numbers_are_no_long_keys(project):
    numbers = [i / 8 for i in range(1000)]
    assert read_spec_file(project.write("a.toml", f'a = {numbers}\nb = "{"a." * 500}"\n')) == {
        "a": numbers,
        "b": "a." * 500,
    }


@pytest.mark.parametrize(("name", "limit"), [("a.json", 8), ("a.yaml", 1), ("a.yml", 1), ("a.toml", 1)])
def test_a_file_that_is_too_large_is_refused_before_it_is_read(project, name, limit):
    with (project.root / name).open("wb") as file:
        file.truncate(10**12)
    assert sentence_of(read_spec_file, project.root / name) == f"cannot read {name}: it is larger than {limit} MB"


def test_only_regular_files_are_read(project):
    os.mkfifo(project.root / "fifo.json")
    assert sentence_of(read_spec_file, project.root / "fifo.json") == "cannot read fifo.json: it is not a regular file"
    (project.root / "zero.json").symlink_to("/dev/zero")
    assert sentence_of(read_spec_file, project.root / "zero.json") == "cannot read zero.json: it is not a regular file"
