#include "costmodel/convert_command.h"

// Without LibTorch: of archives nothing is known. The executor builds the program that knows them.

int main(int argc, char** argv) { return stagecraft::run_convert_command(argc, argv, nullptr); }
