"""The archive of a ``.pt2`` file: the one JSON text in it, unpacked no further than a program can be large."""

from __future__ import annotations

import json
import lzma
import struct
import zipfile
import zlib
from pathlib import PurePosixPath
from typing import Any

from weft.models.capture.exported import ExportError
from weft.models.files.limits import MAX_ARCHIVE_ENTRIES, MAX_PROGRAM_BYTES
from weft.models.files.reading import checked_path

__all__ = ["read_program"]

#: What zipfile and what it unpacks with raise for broken and for encrypted archives.
_NOT_AN_ARCHIVE = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError,
                   LookupError, NotImplementedError, RuntimeError)


def read_program(where: str) -> Any:
    """The program in the archive, as JSON has it. Raises :class:`~weft.models.capture.exported.ExportError`."""
    checked_path(where, 2**63, "a .pt2 archive", ExportError)
    try:
        with zipfile.ZipFile(where) as archive:
            if len(archive.filelist) > MAX_ARCHIVE_ENTRIES:
                raise ExportError(f"{where}: has {len(archive.filelist)} entries, at most {MAX_ARCHIVE_ENTRIES} are "
                                  "supported")
            entries = {PurePosixPath(name).parts[1:]: name for name in archive.namelist()}
            top = set(archive.namelist())
            if "serialized_exported_program.json" in top:
                raise ExportError(f"{where}: was written by torch 2.7 or older; export the model again with torch 2.8 "
                                  "or newer")
            models = [entry for entry in entries if len(entry) == 2 and entry[0] == "models"
                      and entry[1].endswith(".json")]
            if not models:
                raise ExportError(f"{where}: holds no exported program; write it with "
                                  "torch.export.save(torch.export.export(module, example_inputs), path)")
            if len(models) > 1:
                raise ExportError(f"{where}: holds {len(models)} programs, save one per file")
            return json.loads(_unpacked(archive, entries[models[0]], where))
    except OSError as error:
        raise ExportError(f"{where}: cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise ExportError(f"{where}: models/model.json in it is nested too deeply") from None
    except _NOT_AN_ARCHIVE as error:
        raise ExportError(f"{where}: is no .pt2 archive ({str(error)[:200]}); write it with "
                          "torch.export.save") from None
    except ExportError:
        raise
    except ValueError:  # no JSON, no UTF-8, a whole number with thousands of digits
        raise ExportError(f"{where}: models/model.json in it is not JSON") from None


def _unpacked(archive: zipfile.ZipFile, name: str, where: str) -> bytes:
    """The entry ``name``. It is not unpacked where it says that it is too large, and never beyond that: what it says
    can be wrong."""
    data, declared = b"", archive.getinfo(name).file_size
    if declared <= MAX_PROGRAM_BYTES:
        with archive.open(name) as stream:
            data = stream.read(MAX_PROGRAM_BYTES + 1)
    if max(declared, len(data)) > MAX_PROGRAM_BYTES:
        raise ExportError(f"{where}: {name} unpacks to more than {MAX_PROGRAM_BYTES // 1024**2} MiB, the program of no "
                          "model is so large")
    return data
