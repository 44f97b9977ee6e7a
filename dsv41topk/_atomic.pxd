# SPDX-License-Identifier: Apache-2.0
"""Loads and stores that threads without a GIL may do at once: what was written before a store is
seen after the load that reads it.
"""


cdef extern from *:
    """
    #ifndef DSV41TOPK_ATOMIC
    #define DSV41TOPK_ATOMIC
    #define dsv41_load_acquire(place) __atomic_load_n((place), __ATOMIC_ACQUIRE)
    #define dsv41_store_release(place, value) __atomic_store_n((place), (value), __ATOMIC_RELEASE)
    #define dsv41_add(place, value) __atomic_add_fetch((place), (value), __ATOMIC_RELAXED)
    #endif
    """
    int load_int "dsv41_load_acquire"(int* place) noexcept nogil
    void store_int "dsv41_store_release"(int* place, int value) noexcept nogil
    int add_int "dsv41_add"(int* place, int value) noexcept nogil
    const void* load_pointer "dsv41_load_acquire"(const void** place) noexcept nogil
    void store_pointer "dsv41_store_release"(const void** place, const void* value) noexcept nogil
