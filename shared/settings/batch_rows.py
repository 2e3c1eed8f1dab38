"""The settings of files and batches."""

from shared.settings.setting import AUTO, Setting, int_row, text_row

ROWS: tuple[Setting, ...] = (
    text_row(
        "files_dir",
        "",
        "a folder",
        "where the contents of files are kept, shared by all doors of a store; unset: in the store",
    ),
    int_row("max_file_bytes", 104_857_600, "bytes", 1_024, 1_073_741_824, "longer files get status 413"),
    int_row(
        "max_files_bytes",
        AUTO,
        "bytes",
        2**20,
        10**15,
        "what the files and batches of all tenants may take; auto: half of the store's memory, or 10 GiB of a folder",
        auto=True,
    ),
    int_row(
        "file_ttl_s", 2_592_000, "s", 3_600, 31_536_000, "how long files are kept; 30 days, as OpenAI keeps batch files"
    ),
    int_row("max_batch_lines", 50_000, "lines", 1, 1_000_000, "lines of one batch; the default is OpenAI's bound"),
    int_row(
        "batch_lines_at_once",
        64,
        "lines",
        1,
        1_024,
        "lines of one batch that are queued or run at once; a few times the slots of a pool keep its workers busy",
    ),
)
