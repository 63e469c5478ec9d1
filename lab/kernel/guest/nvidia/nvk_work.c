// A Vulkan program for NVK: a device, and memory of each type, written and read by the host.
// Prints "right NAME" or "wrong NAME" for each step. It submits nothing: the driver's only queue
// family draws too, and begins with methods of a 3D class, which the virtual cards do not execute.
#define VK_NO_PROTOTYPES
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <vulkan/vulkan.h>

#define TRY(call) do { VkResult r_ = (call); if (r_) { printf("wrong %s = %d\n", #call, r_); exit(1); } } while (0)
#define CALLS(X) \
  X(vkEnumeratePhysicalDevices) X(vkGetPhysicalDeviceProperties) X(vkGetPhysicalDeviceMemoryProperties) \
  X(vkGetPhysicalDeviceQueueFamilyProperties) X(vkCreateDevice) X(vkCreateBuffer) \
  X(vkGetBufferMemoryRequirements) X(vkAllocateMemory) X(vkBindBufferMemory) X(vkFreeMemory) X(vkDestroyBuffer) \
  X(vkMapMemory) X(vkUnmapMemory) X(vkDestroyDevice) X(vkDestroyInstance)
#define DECLARE(name) static PFN_##name name;
CALLS(DECLARE)

enum { WORDS = 17 << 10 };  // more than a page of 64 KiB; each access of the GPU's memory is a message

static uint32_t pattern(uint32_t i, uint32_t seed) { return i * 2654435761u + seed; }

// Write through one mapping and read through another one.
static void use(VkDevice device, VkBuffer buffer, VkDeviceSize size, uint32_t type, VkMemoryPropertyFlags flags) {
  VkMemoryAllocateInfo ask = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = size, .memoryTypeIndex = type};
  VkDeviceMemory memory;
  TRY(vkAllocateMemory(device, &ask, 0, &memory));
  TRY(vkBindBufferMemory(device, buffer, memory, 0));
  int well = 1;
  if (flags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT) {
    volatile uint32_t *words;
    TRY(vkMapMemory(device, memory, 0, 4 * WORDS, 0, (void **)&words));
    for (uint32_t i = 0; i < WORDS; i++) words[i] = pattern(i, type);
    vkUnmapMemory(device, memory);
    TRY(vkMapMemory(device, memory, 0, 4 * WORDS, 0, (void **)&words));
    for (uint32_t i = 0; i < WORDS; i++) well &= words[i] == pattern(i, type);
    vkUnmapMemory(device, memory);
  }
  printf("%s memory of type %u, flags %#x\n", well ? "right" : "wrong", type, flags);
  vkFreeMemory(device, memory, 0);
}

static void every_memory(VkPhysicalDevice gpu, VkDevice device) {
  VkPhysicalDeviceMemoryProperties types;
  vkGetPhysicalDeviceMemoryProperties(gpu, &types);
  for (uint32_t type = 0; type < types.memoryTypeCount; type++) {
    VkBufferCreateInfo info = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = 4 * WORDS, .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT};
    VkBuffer buffer;
    TRY(vkCreateBuffer(device, &info, 0, &buffer));
    VkMemoryRequirements needed;
    vkGetBufferMemoryRequirements(device, buffer, &needed);
    if (needed.memoryTypeBits >> type & 1)
      use(device, buffer, needed.size, type, types.memoryTypes[type].propertyFlags);
    vkDestroyBuffer(device, buffer, 0);
  }
}

int main(void) {
  setvbuf(stdout, 0, _IONBF, 0);
  void *loader = dlopen("libvulkan.so.1", RTLD_NOW);
  if (!loader) printf("wrong %s\n", dlerror()), exit(1);
  PFN_vkGetInstanceProcAddr find = (PFN_vkGetInstanceProcAddr)dlsym(loader, "vkGetInstanceProcAddr");
  PFN_vkCreateInstance create = (PFN_vkCreateInstance)find(0, "vkCreateInstance");
  VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
  VkInstance instance;
  TRY(create(&info, 0, &instance));
#define LOAD(name) name = (PFN_##name)find(instance, #name);
  CALLS(LOAD)
  VkPhysicalDevice gpu;
  uint32_t count = 1;
  TRY(vkEnumeratePhysicalDevices(instance, &count, &gpu));
  VkPhysicalDeviceProperties properties;
  vkGetPhysicalDeviceProperties(gpu, &properties);
  printf("right device %s\n", properties.deviceName);
  VkQueueFamilyProperties families[16];
  uint32_t many = 16;
  vkGetPhysicalDeviceQueueFamilyProperties(gpu, &many, families);
  for (uint32_t i = 0; i < many; i++) printf("family %u: flags %#x\n", i, families[i].queueFlags);
  float priority = 1;
  VkDeviceQueueCreateInfo one = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority};
  VkDeviceCreateInfo ask = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .queueCreateInfoCount = 1, .pQueueCreateInfos = &one};
  VkDevice device;
  TRY(vkCreateDevice(gpu, &ask, 0, &device));
  printf("right logical device\n");
  every_memory(gpu, device);
  vkDestroyDevice(device, 0);
  vkDestroyInstance(instance, 0);
  printf("right end\n");
  return 0;
}
