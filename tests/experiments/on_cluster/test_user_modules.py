from steppe.experiments.on_cluster.user_modules import user_modules
from steppe.spec_files import load_experiment


def spec(tmp_path, **fields):
    given = {"name": "x", "environment": "CartPole-v1"} | fields
    return load_experiment(None, given, [], tmp_path, options=False)


def test_nothing_goes_along_where_nothing_is_named(tmp_path):
    (tmp_path / "gymnasium.py").write_text("")
    (tmp_path / "ppo.py").write_text("")
    assert user_modules(spec(tmp_path), [tmp_path]) == {}


def test_a_module_is_sent_with_the_modules_of_its_folder_that_it_imports(tmp_path):
    (tmp_path / "world.py").write_text("import physics\nfrom numpy import array\n")
    (tmp_path / "physics.py").write_text("import constants\n")
    (tmp_path / "constants.py").write_text("G = 9.8\n")
    (tmp_path / "other.py").write_text("")
    found = user_modules(spec(tmp_path, environment="world:make"), [tmp_path])
    assert set(found) == {"constants.py", "physics.py", "world.py"}
    assert found["constants.py"] == "G = 9.8\n"


def test_a_package_goes_along_as_a_whole(tmp_path):
    package = tmp_path / "worlds"
    (package / "inner" / "__pycache__").mkdir(parents=True)
    for name in ("__init__.py", "cart.py", "inner/__init__.py", "inner/__pycache__/x.py"):
        (package / name).write_text("")
    found = user_modules(spec(tmp_path, environment="worlds.cart:make"), [tmp_path])
    assert set(found) == {"worlds/__init__.py", "worlds/cart.py", "worlds/inner/__init__.py"}


def test_a_package_is_sent_with_its_data_files_but_without_hidden_ones(tmp_path):
    package = tmp_path / "worlds"
    (package / ".cache").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "level.txt").write_text("..#")
    (package / "level.bin").write_bytes(b"\xff")
    (package / ".cache" / "x").write_text("")
    found = user_modules(spec(tmp_path, environment="worlds:make"), [tmp_path])
    assert found == {"worlds/__init__.py": "", "worlds/level.bin": b"\xff", "worlds/level.txt": "..#"}


def test_wrappers_are_found_too_and_the_first_folder_wins(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, text in ((here, "a = 1\n"), (there, "a = 2\n")):
        folder.mkdir()
        (folder / "mine.py").write_text(text)
    environment = {"id": "CartPole-v1", "wrappers": ["mine.Slow", "gymnasium.wrappers.NormalizeReward"]}
    assert user_modules(spec(tmp_path, environment=environment), [here, there]) == {"mine.py": "a = 1\n"}
