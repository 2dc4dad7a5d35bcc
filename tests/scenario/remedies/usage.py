"""Arguments and settings that make no sense: the same command, corrected, works."""

from __future__ import annotations

from tests.support.remedies import Witness, follows, retried
from tests.support.serving import serving

T = "{lake}/t"

retried(
    "table.py: leave them out, and give the place to export to",
    f"export|{T}|--to|{{lake}}/out|--keep|2",
    f"export|{T}|--to|{{lake}}/out",
)
retried("files.py: give a path", f"files|{T}|--output|s3://b/f", f"files|{T}|--output|f.parquet")
retried(
    "files.py: give a file in a folder that is there",
    f"files|{T}|--output|nowhere/f.parquet",
    f"files|{T}|--output|f.parquet",
)
retried(
    "files.py: give the path of a file",
    f"files|{T}|--output|/dev/null",
    f"files|{T}|--output|f.parquet",
)
retried(
    # Nobody may make a file there, not even root.
    "rights.py: ask {}, who owns {}, or choose another place",
    f"files|{T}|--output|/sys/f.parquet",
    f"files|{T}|--output|f.parquet",
)
retried(
    "config.py: write for example --storage-option aws_region=eu-central-1",
    f"inspect|{T}|--storage-option|aws_region",
    f"inspect|{T}|--storage-option|aws_region=eu-central-1",
)
retried(
    "api/redirects.py: leave out --location",
    f"redirect|enable|{T}|{{lake}}/n|--location|{{lake}}/m",
    f"redirect|enable|{T}|{{lake}}/n",
)
retried(
    "api/redirects.py: give the place with --location",
    f"redirect|enable|{T}|sql:a.b.t",
    f"redirect|enable|{T}|sql:a.b.t|--location|{{lake}}/n",
)
retried(
    "no_redirect_rules.py: write APP:OPERATION,OPERATION or :OPERATION",
    f"redirect|enable|{T}|{{lake}}/n|--rule|VACUUM START",
    f"redirect|enable|{T}|{{lake}}/n|--rule|:VACUUM START",
)
retried(
    "preflight.py: choose another target",
    f"redirect|enable|{T}|{T}",
    f"redirect|enable|{T}|{{lake}}/n",
)
retried(
    "preflight.py: choose a target beside the table",
    f"redirect|enable|{T}|{T}/n",
    f"redirect|enable|{T}|{{lake}}/n",
)
retried(
    "preflight.py: choose a target on disk or in an object store",
    f"redirect|enable|{T}|memory://n",
    f"redirect|enable|{T}|{{lake}}/n",
)
retried(
    "preflight.py: use the dialect rfc or catalog",
    f"redirect|enable|{T}|sql:a.b.t|--location|{{lake}}/n|--dialect|delta-spark",
    f"redirect|enable|{T}|sql:a.b.t|--location|{{lake}}/n|--dialect|rfc",
)
retried(
    "preflight.py: choose one of them",
    f"redirect|enable|{T}|{{lake}}/n|--dialect|rfc,catalog",
    f"redirect|enable|{T}|{{lake}}/n|--dialect|rfc",
)
retried(
    "catalogs/catalog.py: write catalog.schema.table",
    f"catalog|register|sql:t|{T}",
    f"catalog|register|sql:a.b.t|{T}",
)
retried(
    "catalogs/catalog.py: check the name and {} ('lakeferry catalog list {}:{}' shows what is "
    "there), or give a table that name: lakeferry catalog register {}:{} LOCATION",
    "inspect|sql:a.b.t",
    f"catalog|register|sql:a.b.t|{T}",
)
retried(
    "names.py: write sql: or unity:, and the beginning of a name",
    "catalog|list|hive:a",
    "catalog|list|sql:a",
)
retried("origins.py: give --to URI", f"export|{T}", f"export|{T}|--to|{{lake}}/out")
retried(
    "origins.py: choose a place outside of it",
    f"export|{T}|--to|{T}/out",
    f"export|{T}|--to|{{lake}}/out",
)
retried(
    "segment.py: use --version {} or an older one (version=N in Python)",
    f"inspect|{T}|--version|99",
    f"inspect|{T}|--version|3",
)
retried("delta_log.py: check the path", "inspect|{lake}/x", f"inspect|{T}")
retried(
    "cleaning.py: give a version up to {}",
    f"cleanup|{T}|--before|99",
    f"cleanup|{T}|--before|1",
)
retried(
    "cleaning.py: give a longer --retention, or --force to clean up nevertheless",
    f"cleanup|{T}|--retention|1h",
    f"cleanup|{T}|--retention|1h|--force",
)
retried("uris.py: give a path, a URI or a catalog name", "inspect|", f"inspect|{T}")
retried(
    "uris.py: write file:///path for a path on this machine",
    "inspect|file://other/t",
    "inspect|file://{folder}/t",
)
retried(
    "uris.py: write file:///path, or leave out 'file:' for a relative path",
    "inspect|file:t",
    "inspect|file://{folder}/t",
)
retried(
    "uris.py: use one of {}; a local path with a colon in it begins with './'",
    "inspect|ftp://x/t",
    f"inspect|{T}",
)


@follows(
    "running_server.py: choose 1s to 7d",
    "running_server.py: choose another --port or address; port 0 chooses a free one",
)
def a_server_is_started_with_a_life_of_urls_and_a_port_that_are_possible(witness: Witness) -> None:
    root, taken = witness.lake.uri("server"), witness.server.url.rpartition(":")[2]
    witness.refused("serve", "--root", root, "--port", "0", "--urls-last", "30d")
    witness.refused("serve", "--root", root, "--port", taken)
    with serving(witness.lake.folder, {}, "--urls-last", "7d") as server:
        assert server.url.rpartition(":")[2] != taken
        witness.done("token", "create", "--root", root)


@follows("config.py: correct the file; docs/cli.md describes its keys")
def a_configuration_file_that_does_not_parse_is_corrected(witness: Witness) -> None:
    witness.lake.make("t")
    settings = witness.lake.home / "lakeferry.toml"
    settings.write_text("engine = [")
    witness.refused("inspect", witness.lake.uri("t"))
    settings.write_text('engine = "local"')
    witness.done("inspect", witness.lake.uri("t"))


@follows("config.py: {}the keys are {}", "config.py: use one of {}")
def an_unknown_key_and_an_unknown_engine_are_corrected(witness: Witness) -> None:
    witness.lake.make("t")
    settings = witness.lake.home / "lakeferry.toml"
    settings.write_text('engin = "local"')
    witness.refused("inspect", witness.lake.uri("t"))
    settings.write_text('engine = "dask"')
    witness.refused("inspect", witness.lake.uri("t"))
    settings.write_text('engine = "local"')
    witness.done("inspect", witness.lake.uri("t"))


@follows("table.py: give one of them", "table.py: write a number and a unit, such as 12h or 7d")
def a_user_of_python_corrects_the_arguments(witness: Witness) -> None:
    witness.lake.make("t")
    table = witness.lake.table("t")
    witness.raises(lambda: table.files(1, timestamp_ms=5))
    witness.returns(lambda: table.files(1))
    witness.raises(lambda: table.cleanup(retention="soon"))
    witness.returns(lambda: table.cleanup(retention="30d"))


@follows("cleaning.py: give a version of the table")
def a_user_of_python_cleans_up_before_a_version_that_exists(witness: Witness) -> None:
    witness.lake.make("t")
    table = witness.lake.table("t")
    witness.raises(lambda: table.cleanup(before=-1))
    witness.returns(lambda: table.cleanup(before=1))
