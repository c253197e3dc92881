#include <gtest/gtest.h>

#include "serve/page_pool.h"

namespace bm::serve {
namespace {

TEST(PagePool, SharesWhatIsPublishedAndKeepsItUntilRoomIsNeeded) {
  PagePool pool(3, 2);
  const std::vector<int32_t> prompt{1, 2, 3, 4, 5};
  ASSERT_TRUE(pool.reserve(3));
  std::vector<uint32_t> pages{pool.take(), pool.take()};
  pool.publish(prompt, std::span(pages).first(1));
  pool.publish(prompt, pages);
  EXPECT_EQ(pool.match(prompt, 1), (std::vector<uint32_t>{pages[0]}));
  pool.release(pages[0]);
  EXPECT_EQ(pool.match(std::vector<int32_t>{1, 2, 9, 9}, 2), (std::vector<uint32_t>{pages[0]}));
  pool.release(pages[0]);
  EXPECT_TRUE(pool.match(std::vector<int32_t>{3, 4, 1, 2}, 2).empty());  // elsewhere in a prompt
  pool.release(pages[1]);
  pool.release(pages[0]);
  EXPECT_EQ(pool.used(), 0u);
  EXPECT_EQ(pool.cached(), 2u);
  // The free one first, then the end of the prefix, which was put aside first.
  EXPECT_NE(pool.take(), pages[0]);
  EXPECT_EQ(pool.take(), pages[1]);
  EXPECT_EQ(pool.match(prompt, 2), (std::vector<uint32_t>{pages[0]}));
}

TEST(PagePool, ReservationsAreBounded) {
  PagePool pool(4, 2);
  EXPECT_TRUE(pool.reserve(3));
  EXPECT_FALSE(pool.reserve(2));
  EXPECT_TRUE(pool.reserve(1));
  pool.cancel_reservation(3);
  EXPECT_TRUE(pool.reserve(3));
}

TEST(PagePool, ThePageOfTwoThatComputedTheSameStaysTheFirsts) {
  PagePool pool(4, 2);
  const std::vector<int32_t> prompt{7, 8, 9, 9};
  const std::vector<uint32_t> first{pool.take(), pool.take()}, second{pool.take(), pool.take()};
  pool.publish(prompt, std::span(first).first(1));
  pool.publish(prompt, std::span(second).first(1));
  pool.publish(prompt, second);  // its beginning is not the one that is known
  EXPECT_EQ(pool.match(prompt, 2), (std::vector<uint32_t>{first[0]}));
}

}  // namespace
}  // namespace bm::serve
