// What metrics read from the engine's parts, and from the kernel about this process, whenever a page is made.
// Thread rule: once, before the first page; the engine outlives its metrics' pages.
#pragma once

#include "server/engine.h"

namespace attnd::server {

void AddLevels(Engine& engine);

}  // namespace attnd::server
