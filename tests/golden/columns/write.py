#!/usr/bin/env python3
"""write.py: writes the files of this folder, with pyarrow 26.0.1."""
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet

# Row i: x is [i, i + 0.5], grid [[i, i + 1], [i + 2, i + 3], [i + 4, i + 5]], y is i % 5, text has i % 4 numbers from 100 * i.
rows = range(12)
table = pa.table({
    "x": pa.array([[i, i + 0.5] for i in rows], pa.list_(pa.float64())),
    "grid": pa.array([[[i, i + 1], [i + 2, i + 3], [i + 4, i + 5]] for i in rows], pa.list_(pa.list_(pa.float32(), 2))),
    "y": pa.array([i % 5 for i in rows], pa.int32()),
    "flag": pa.array([i % 3 == 0 for i in rows], pa.bool_()),
    "text": pa.array([[100 * i + k for k in range(i % 4)] for i in rows], pa.large_list(pa.uint16())),
    "name": pa.array([f"row {i}" for i in rows], pa.string()),
    "some": pa.array([None if i == 7 else i for i in rows], pa.int64()),
    "big": pa.array([100 * i for i in rows], pa.int64()),
    "holes": pa.array([[i, None] for i in rows], pa.list_(pa.int64())),
})
pyarrow.parquet.write_table(table, "snappy.parquet", row_group_size=5)  # dictionaries, Snappy
pyarrow.parquet.write_table(table, "zstd.parquet", compression="zstd", use_dictionary=False, data_page_version="2.0")
pyarrow.feather.write_feather(table, "lz4.feather", compression="lz4", chunksize=5)
with pyarrow.ipc.new_file("plain.arrow", table.schema) as file:
    file.write_table(table)
with pyarrow.ipc.new_stream("stream.arrow", table.schema) as stream:  # as Hugging Face's datasets writes them
    stream.write_table(table, max_chunksize=5)
