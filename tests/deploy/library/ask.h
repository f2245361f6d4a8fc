// A user's shared library, which has attnd's inside and shows nothing of it.
#pragma once

// Calls in turn over all of the target's servers. Each line on stdin is how many calls to make; printed is how many
// failed, and the first failure. An exit code.
__attribute__((visibility("default"))) int Ask(const char* target);
