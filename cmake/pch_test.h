#pragma once
// What every test file includes anyway.
#include <gtest/gtest.h>

#include "cmake/pch.h"
