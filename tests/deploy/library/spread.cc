// spread TARGET
#include "ask.h"

int main(int argc, char** argv) { return argc == 2 ? Ask(argv[1]) : 2; }
