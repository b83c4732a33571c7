from integration.pyiceberg_suite import UNIT_TESTS, counts, differences, run

plain, loaded = run(None, *UNIT_TESTS), run("loaded", *UNIT_TESTS)
print(f"without this package: {counts(plain)}")
print(f"with this package:    {counts(loaded)}")
for test, (before, after) in differences(plain, loaded).items():
    print(f"{test}: {before}, then {after}")
