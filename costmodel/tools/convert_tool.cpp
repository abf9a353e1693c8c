#include "costmodel/command/convert_command.h"

// Without LibTorch: archives are not supported. The executor builds the program that supports them.

int main(int argc, char** argv) { return stagecraft::run_convert_command(argc, argv, nullptr); }
