from importlib import metadata

import lakeferry


def test_the_package_and_its_metadata_agree_on_the_version() -> None:
    assert lakeferry.__version__ == metadata.version("lakeferry")
