"""Two photographs of one building, for ``disk-ops demo``.

The portal of Berlin Cathedral, from two places and at two focal lengths: images 01 and 02 of ``data/berlin`` in
https://github.com/mapillary/OpenSfM, scaled to 1024 x 768 and recompressed. Licence: BSD-2-Clause, see LICENSE.md.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
TITLE = "the portal of Berlin Cathedral"
IMAGES = (FOLDER / "berlin_1.jpg", FOLDER / "berlin_2.jpg")
