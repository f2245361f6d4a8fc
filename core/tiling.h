// Tile sizes, in one place: pure arithmetic, no kernels, the same on every machine.
// Thread rule: constants.
#pragma once

#include <cstdint>

namespace attnd {

// Keys of one tile. A row meets its keys tile by tile from key 0, so this constant is part of what a row's bytes depend on.
constexpr std::int64_t kKeyTileColumns = 256;
// Query rows of one tile. Changing it changes speed, never bytes.
constexpr std::int64_t kQueryTileRows = 128;

}  // namespace attnd
