#pragma once
// JSON schemas (draft 2020-12) as GBNF: what the grammar allows is JSON that the schema allows.
//
// Not the other way round. Properties come in the order of the schema, and others only where
// additionalProperties says so; a schema with keywords of one type and no "type" means that type;
// numbers have at most 16 digits on each side of the point; strings spell control characters and no
// others by escapes. Supported: type, enum, const, properties, required, additionalProperties,
// patternProperties (beside properties and each other where the literal
// beginnings of patterns tell names apart; names that match none are not written), propertyNames
// (beside no properties), minProperties (at most one name that is free counts: others could repeat
// it), maxProperties, items, prefixItems, minItems, maxItems, minLength, maxLength, pattern (a
// subset: see regex_grammar.h), format (date, time, date-time, duration, uuid, email, hostname,
// ipv4, ipv6, uri; names that the standard does not have say nothing), multipleOf (whole numbers,
// with few digits where it is large), bounds of integers and numbers (of numbers, where they are
// exclusive or not whole: below 10⁶, with 6 digits behind the point), anyOf, oneOf (branches that
// exclude each other by type, constant or a property's constant), allOf (what can be merged), $ref
// within the document, $defs. Every other keyword is refused by name.

#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace bm::models {

/// Errors: kInvalidArgument: no JSON, no schema, a reference that leads nowhere, a schema that
/// allows nothing, more than 1 MiB or 64 levels; kUnsupported naming keyword and place.
Result<std::string> grammar_of_json_schema(std::string_view schema);

}  // namespace bm::models
