#pragma once

#include "executor/model/model.h"
